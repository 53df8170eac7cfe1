"""Shared parts of the Triton kernels; this file must not import Triton."""

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

from regard.errors import BackendError

Prepared = TypeVar("Prepared")


def cannot_run(backend: str, reason: str) -> BackendError:
    """The error for a backend that was requested by name and refuses."""
    return BackendError(f"backend: {backend} cannot run here, {reason}; try backend='auto'")


def load_kernel(name: str) -> Any:
    """A module of kernels; it imports Triton, so this is called only where they may run."""
    return import_module(f"regard.ops.{name}")


def prepare_kernel(
    backend: str, is_cuda: bool, prepare: Callable[[], Prepared | str]
) -> Prepared | None:
    """What the kernel runs with; None if it does not run.

    `prepare` gives that, or the reason why not. "auto" takes the kernel on CUDA unless it refuses;
    "kernel" then raises.
    """
    if backend not in ("auto", "reference", "tiled", "kernel"):
        raise BackendError(f"backend: needs auto, reference, tiled or kernel, got {backend!r}")
    if backend != "kernel" and not (backend == "auto" and is_cuda):
        return None
    prepared = prepare()
    if isinstance(prepared, str):
        if backend == "kernel":
            raise cannot_run(backend, prepared)
        return None
    return prepared
