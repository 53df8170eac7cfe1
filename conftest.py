"""What every test shares.

Nothing of regard is imported at the top: the shape checker hooks imports.
"""

import os
from collections.abc import Iterator
from typing import Any

import jaxtyping
import pytest
from hypothesis import settings

# without a GPU Triton's kernels run in its interpreter; it reads this when first imported
if not os.path.exists("/dev/nvidiactl"):
    os.environ.setdefault("TRITON_INTERPRET", "1")

# `REGARD_SEED` and `REGARD_THREADS` vary what is otherwise fixed; `make slow` runs a variation
SEED, THREADS = int(os.environ.get("REGARD_SEED", 0)), int(os.environ.get("REGARD_THREADS", 1))
settings.register_profile(
    "regard", deadline=None, derandomize=SEED == 0, max_examples=30, database=None
)
settings.load_profile("regard")


def pytest_configure(config: pytest.Config) -> None:
    """Another seed is Hypothesis' own too (its plugin reads the option after this)."""
    if SEED and config.getoption("--hypothesis-seed", None) is None:
        config.option.hypothesis_seed = str(SEED)


@pytest.fixture(autouse=True)
def same_start(doctest_namespace: dict[str, Any]) -> None:
    """Every test draws the same numbers, alone or among others; examples have torch and rg."""
    import torch

    import regard

    torch.manual_seed(SEED)
    torch.set_num_threads(THREADS)  # tests run side by side; more threads only fight
    doctest_namespace.update(torch=torch, rg=regard)


@pytest.fixture
def users_view() -> Iterator[None]:
    """Shape checks off, as for a user: what remains is the error we wrote."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
