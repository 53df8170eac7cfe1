"""Shared parts of the Triton kernels; this file must not import Triton."""

from collections.abc import Callable

from regard.errors import BackendError


def cannot_run(backend: str, reason: str) -> BackendError:
    """The error for a backend that was requested by name and refuses."""
    return BackendError(f"backend: {backend} cannot run here, {reason}; try backend='auto'")


def use_kernel(backend: str, is_cuda: bool, refusal: Callable[[], str | None]) -> bool:
    """Whether the kernel runs: "auto" takes it on CUDA unless it refuses; "kernel" then raises."""
    if backend not in ("auto", "reference", "tiled", "kernel"):
        raise BackendError(f"backend: needs auto, reference, tiled or kernel, got {backend!r}")
    if backend != "kernel" and not (backend == "auto" and is_cuda):
        return False
    reason = refusal()
    if reason is not None and backend == "kernel":
        raise cannot_run(backend, reason)
    return reason is None
