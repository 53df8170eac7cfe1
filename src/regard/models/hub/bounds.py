"""Bounds on the sizes that a folder of Hugging Face declares, checked before memory is taken."""

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from threading import get_ident
from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as hooks

from regard.errors import FileError

# the most that a config may declare under names like these; the first that fits counts
BOUNDS = (
    (re.compile(r"_dim$|_size$"), 1 << 26),
    (re.compile(r"label|class"), 1 << 16),
    (re.compile(r"layer|block|stage|depth|expert|head|codebook|quantizer|group|branch"), 1 << 12),
    (re.compile(r"size|dim|position|vocab|channel|width|hidden|max_.*len|_mel"), 1 << 26),
    (re.compile(r"^(n|num|d)_"), 1 << 26),
)
MAX_BUFFER_BYTES = 256 << 20  # of tables that are computed and not saved
MAX_TENSORS, MAX_NUMBERS = 1 << 15, 1 << 44  # of a model without weights


def check_sizes(values: Any, where: str, key: str = "") -> None:
    """Check every integer of a config by its name, also inside of others and of lists.

    >>> check_sizes({"text_config": {"num_hidden_layers": 10**6}}, "config.json")
    Traceback (most recent call last):
        ...
    regard.errors.FileError: config.json: needs num_hidden_layers of at most 4096, got 1e+06
    """
    if isinstance(values, dict):
        for name, value in values.items():
            check_sizes(value, where, str(name))
    elif isinstance(values, list):
        for value in values:
            check_sizes(value, where, key)
    elif isinstance(values, int | float):
        most = next((most for name, most in BOUNDS if name.search(key)), None)
        if most is not None and abs(values) > most and values == values // 1:
            got = f"{values:.6g}" if abs(values) < 10**300 else "hundreds of digits"
            raise FileError(f"{where}: needs {key} of at most {most}, got {got}")


@contextmanager
def bounded_model(where: str, state: Mapping[str, Tensor] | None = None) -> Iterator[None]:
    """Refuse a model that has more parameters than a file with these tensors can fill.

    Checked as each parameter is made on the meta device, where it takes no memory yet. A library
    may split or join tensors, so that only sizes out of all proportion are refused here.
    """
    tensors, numbers, thread = MAX_TENSORS, MAX_NUMBERS, get_ident()
    if state is not None:
        tensors = 4 * len(state) + 64
        numbers = 2 * sum(x.numel() for x in state.values()) + (1 << 16)
    total = count = 0

    def count_parameter(module: nn.Module, name: str, x: Tensor | None) -> None:
        nonlocal total, count
        if x is None or not x.is_meta or get_ident() != thread:
            return
        total, count = total + x.numel(), count + 1
        if total > numbers or count > tensors:
            has = "at most" if state is None else "no more than its tensors have, about"
            raise FileError(
                f"{where}: needs sizes of {has} {numbers:,} numbers in {tensors:,} parameters, "
                f"got {type(module).__name__}.{name} of shape {tuple(x.shape)} after {count:,}"
            )

    def check_buffer(module: nn.Module, name: str, x: Tensor | None) -> None:
        if x is not None and get_ident() == thread and x.nbytes > MAX_BUFFER_BYTES:
            raise FileError(
                f"{where}: needs tables of at most {MAX_BUFFER_BYTES >> 20} MiB beside its "
                f"weights, got {type(module).__name__}.{name} of {x.nbytes >> 20} MiB"
            )

    with ExitStack() as stack:
        handle = hooks.register_module_parameter_registration_hook(count_parameter)
        stack.callback(handle.remove)
        stack.callback(hooks.register_module_buffer_registration_hook(check_buffer).remove)
        yield
