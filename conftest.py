"""What every test shares.

Nothing of regard is imported at the top: the shape checker hooks imports.
"""

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import checker
import jaxtyping
import pytest
from hypothesis import settings

collect_ignore = ["tests/fuzz"]  # `make fuzz`
jaxtyping.jaxtyped = checker.jaxtyped  # what the import hook calls

# models that somebody has downloaded are not those of the tests
os.environ["REGARD_HOME"] = "/nonexistent"

# without a GPU Triton's kernels run in its interpreter; it reads this when first imported
if not os.path.exists("/dev/nvidiactl"):
    os.environ.setdefault("TRITON_INTERPRET", "1")

# `REGARD_SEED` and `REGARD_THREADS` vary what is otherwise fixed; `make slow` runs a variation
SEED, THREADS = int(os.environ.get("REGARD_SEED", 0)), int(os.environ.get("REGARD_THREADS", 1))
# commands that tests start, too: OpenMP's threads wait for each other by spinning, so two of them
# beside another process took 30 times as long as one
os.environ.setdefault("OMP_NUM_THREADS", str(THREADS))
settings.register_profile(
    "regard", deadline=None, derandomize=SEED == 0, max_examples=30, database=None
)
settings.load_profile("regard")


def pytest_configure(config: pytest.Config) -> None:
    """Another seed is Hypothesis' own too (its plugin reads the option after this)."""
    if SEED and config.getoption("--hypothesis-seed", None) is None:
        config.option.hypothesis_seed = str(SEED)


@pytest.fixture(scope="session", autouse=True)
def faster_interpreter() -> None:
    """Triton's interpreter patches its language once per launch, not again in each nested call.

    Listing the members of the language for every device function took a third of the kernel tests.
    """
    with suppress(ImportError, AttributeError):
        from triton.runtime import interpreter

        patch, is_builtin = interpreter._patch_builtin, interpreter.tl.core.is_builtin
        first: dict[Any, str | None] = {}  # one builtin of each module; a patched one is none

        def patch_once(owner: Any, builder: Any, scope: Any) -> None:
            if owner not in first:
                names = (name for name in dir(owner) if is_builtin(getattr(owner, name)))
                first[owner] = next(names, None)
            name = first[owner]
            if name is not None and is_builtin(getattr(owner, name)):
                patch(owner, builder, scope)

        interpreter._patch_builtin = patch_once


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


@pytest.fixture
def unprivileged() -> Callable[[], AbstractContextManager[None]]:
    """A context in which modes of files hold for root too, as they do for every other user."""
    libc = ctypes.CDLL(None, use_errno=True)

    @contextmanager
    def without_override() -> Iterator[None]:
        # capabilities(7): bit 1 is CAP_DAC_OVERRIDE, bit 2 CAP_DAC_READ_SEARCH; version 3 has
        # effective, permitted and inheritable sets of twice 32 bits
        header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        if libc.capget(header, sets):
            pytest.skip("capabilities cannot be read here")
        before = sets[0]
        sets[0] = before & ~6
        if libc.capset(header, sets):
            pytest.skip("capabilities cannot be set here")
        try:
            yield
        finally:
            sets[0] = before
            libc.capset(header, sets)

    return without_override
