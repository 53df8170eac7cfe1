"""Values of tensors that a model may overwrite later, held without a copy until it does."""

import torch
from torch import Tensor

Mark = int | Tensor


def snapshot(x: Tensor) -> Tensor:
    """The values of a tensor as they are now, without its graph.

    Both share memory until one is written to, through whichever view (torch's copy on write).

    >>> x = torch.ones(2, 2)
    >>> y = snapshot(x)
    >>> x[0].mul_(3), y
    (tensor([3., 3.]), tensor([[1., 1.],
            [1., 1.]]))
    """
    x = x.detach()
    if x.is_cuda and torch.cuda.current_stream(x.device) != torch.cuda.default_stream(x.device):
        return x.clone()  # torch would copy on the default stream
    try:
        return torch.ops.aten._lazy_clone.default(x)
    except RuntimeError:  # memory that torch does not own, such as that of an array
        return x.clone()


def memory_address(x: Tensor) -> int:
    """Where the memory under a tensor begins, for snapshots too; `data_ptr()` would copy them."""
    # of the storage: the offset of a view does not count
    return torch._C._data_address(x)  # pyright: ignore[reportAttributeAccessIssue]


def mark(x: Tensor) -> Mark:
    """What `is_unchanged` needs: the version, or a snapshot where torch counts no versions."""
    return snapshot(x) if x.is_inference() else x._version


def is_unchanged(x: Tensor, since: Mark) -> bool:
    """Whether a tensor was not written to since it was marked, nor any view of it.

    >>> x = torch.ones(2)
    >>> since = mark(x)
    >>> is_unchanged(x, since), x.view(2, 1).zero_().shape, is_unchanged(x, since)
    (True, torch.Size([2, 1]), False)
    """
    if isinstance(since, Tensor):
        return memory_address(x) == memory_address(since)
    return x._version == since
