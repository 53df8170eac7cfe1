"""Edits of what a router chose: drop an expert, or send tokens to some experts."""

from collections.abc import Callable

import torch
from torch import Tensor

from regard.errors import ShapeError
from regard.inspection.adapters.module_tracker import check_glob
from regard.inspection.edits.activations import ActivationEdit
from regard.inspection.edits.base import Indices, Selection, as_indices, as_selection
from regard.inspection.edits.registry import register_edit


@register_edit()
def drop_expert(name: str, experts: Indices, *, positions: Selection = None) -> ActivationEdit:
    """Remove the outputs of experts from a mixture; the weights of the others stay.

    output = Σ over the other experts of weight · expert(token)

    Args:
        name: Glob over blocks with a router, such as "decoder.3" or "*".
        experts: One or several experts.
        positions: Positions along time; all by default.

    >>> edit = rg.edit.drop_expert("decoder.3", 5)
    >>> edit(torch.tensor([[[[5.0, 0.7, 8.0], [2.0, 0.3, 8.0]]]]))[..., 1]  # weights of 5 and 2
    tensor([[[0.0000, 0.3000]]])
    """
    chosen = as_indices("experts", experts)

    def change(x: Tensor, among: Tensor) -> tuple[Tensor, Tensor]:
        ids, weights = x[..., 0], x[..., 1]
        return ids, weights.masked_fill(torch.isin(ids, among), 0)

    return _edit(name, chosen, change, positions)


@register_edit()
def force_expert(name: str, experts: Indices, *, positions: Selection = None) -> ActivationEdit:
    """Send tokens to the given experts alone, each with an equal part of the weights.

    The sum of the weights of a token stays. The arguments are those of `drop_expert`; at most as
    many experts as each token gets.

    >>> edit = rg.edit.force_expert("decoder.3", 6)
    >>> edit(torch.tensor([[[[5.0, 0.75, 8.0], [2.0, 0.25, 8.0]]]]))[..., :2].tolist()
    [[[[6.0, 1.0], [2.0, 0.0]]]]
    """
    forced = as_indices("experts", experts)

    def change(x: Tensor, among: Tensor) -> tuple[Tensor, Tensor]:
        slots, count = x.shape[-2], len(among)
        if count > slots:
            raise ShapeError(f"experts: needs at most {slots}, those of a token, got {count}")
        ids, weights = x[..., 0].clone(), torch.zeros_like(x[..., 1])
        ids[..., :count] = among
        weights[..., :count] = x[..., 1].sum(-1, keepdim=True) / count
        return ids, weights

    return _edit(name, forced, change, positions)


Change = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def _edit(
    name: str, chosen: tuple[int, ...], change: Change, positions: Selection
) -> ActivationEdit:
    check_glob("name", name)
    glob = name if name.endswith(".router.choice") else f"{name}.router.choice"

    def edit(x: Tensor) -> Tensor:
        count = int(x[..., 2].max()) if x.numel() else max(chosen) + 1
        if max(chosen) >= count:
            raise ShapeError(f"experts: needs less than {count}, got {max(chosen)}")
        pair = change(x, torch.tensor(chosen, dtype=x.dtype, device=x.device))
        return torch.stack([*pair, x[..., 2]], -1)

    return ActivationEdit(glob, "", edit, positions=as_selection("positions", positions))
