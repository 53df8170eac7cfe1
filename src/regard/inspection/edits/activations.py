"""Edits of named activations, and of what a router chose among the experts of a mixture."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.errors import ShapeError
from regard.inspection.adapters.module_tracker import check_glob
from regard.inspection.edits.base import (
    Indices,
    Selection,
    as_indices,
    as_selection,
    check_finite,
    index_mask,
    resolve_heads,
)
from regard.inspection.edits.registry import Range, register_edit


@dataclass(frozen=True)
class ActivationEdit:
    """One change to every activation whose name matches the glob `name`.

    `positions` are along time, counted from the start of a generated sequence with its prompt;
    `heads` of a `.heads` activation, `units` along the last axis; None stands for all. Where they
    meet, the activation is replaced by `change(x)`, of any shape that broadcasts to that of x.

    >>> rg.edit.zero_activation("decoder.0.mlp.out", positions=3)
    zero_activation('decoder.0.mlp.out', positions=3)
    >>> rg.edit.ActivationEdit("*.mlp.out", "clip", lambda x: x.clamp(max=1.0))
    clip
    """

    name: str
    description: str
    change: Callable[[Tensor], Tensor]
    positions: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    units: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_glob("name", self.name)

    def __call__(self, x: Tensor, first: int = 0) -> Tensor:
        """The edited activation: (batch, time, dim), or (batch, time, head, value).

        `first` is the position of its first token, 0 but for the steps of a generation.
        """
        edited = torch.ones((), dtype=torch.bool, device=x.device)
        axes: list[tuple[str, Sequence[int] | None, int]] = [("units", self.units, x.ndim - 1)]
        if self.positions is not None:
            axes.append(("positions", [p - first for p in self.positions if p >= first], 1))
        if self.heads is not None:
            if x.ndim != 4:
                raise ShapeError(
                    f"heads: needs an activation by head, got {self.name!r} of shape "
                    f"{tuple(x.shape)}; try one that ends in .heads"
                )
            axes.append(("heads", resolve_heads(self.heads, x.shape[2]), 2))
        for name, indices, axis in axes:
            if indices is None:
                continue
            if name == "units" and max(indices) >= x.shape[axis]:  # positions may come later
                raise ShapeError(f"{name}: needs less than {x.shape[axis]}, got {max(indices)}")
            mask = index_mask(indices, x.shape[axis], x)
            edited = edited & mask.view(*(-1 if a == axis else 1 for a in range(x.ndim)))
        return torch.where(edited, self.change(x).to(x.dtype), x)

    def __repr__(self) -> str:
        return self.description


@register_edit()
def zero_activation(
    name: str, *, positions: Selection = None, heads: Selection = None, units: Selection = None
) -> ActivationEdit:
    """Replace an activation by zeros (zero ablation).

    Args:
        name: Glob over the names of `activation_names(model)`.
        positions: Positions along time; all by default.
        heads: Heads, for names that end in `.heads`; all by default.
        units: Indices along the last axis, such as neurons of `.mlp.hidden`; all by default.

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=9)).eval()
    >>> with rg.what_if(model, rg.edit.zero_activation("*.mlp.hidden", units=[0, 5])) as log:
    ...     _ = model(torch.tensor([[1, 2, 3]]))
    >>> log
    zero_activation('*.mlp.hidden', units=[0, 5]): decoder.0.mlp.hidden, decoder.1.mlp.hidden
    """
    return _edit(name, torch.zeros_like, positions, heads, units)


@register_edit()
def mean_activation(
    name: str, *, positions: Selection = None, heads: Selection = None, units: Selection = None
) -> ActivationEdit:
    """Replace an activation by its mean over the batch and time (mean ablation).

    For the mean over other inputs, `set_activation` takes that mean. The arguments are those of
    `zero_activation`.

    >>> edit = rg.edit.mean_activation("decoder.0.mlp.out", positions=0)
    >>> edit(torch.tensor([[[1.0], [3.0]]]))
    tensor([[[2.],
             [3.]]])
    """
    return _edit(name, lambda x: x.mean((0, 1), keepdim=True), positions, heads, units)


@register_edit()
def set_activation(
    name: str,
    value: Tensor,
    *,
    positions: Selection = None,
    heads: Selection = None,
    units: Selection = None,
) -> ActivationEdit:
    """Replace an activation by a value, such as the one recorded in another run (patching).

    `value` is broadcast to the shape of the activation; the other arguments are those of
    `zero_activation`.

    >>> edit = rg.edit.set_activation("decoder.0.mlp.out", torch.tensor([7.0]), positions=1)
    >>> edit(torch.tensor([[[1.0], [3.0]]]))
    tensor([[[1.],
             [7.]]])
    """
    _check_tensor("value", value)
    return _edit(name, lambda x: _broadcast("value", value, x, name), positions, heads, units)


@register_edit(factor=Range(-8, 8, 0))
def add_to_activation(
    name: str,
    vector: Tensor,
    *,
    factor: float = 1.0,
    positions: Selection = None,
    heads: Selection = None,
) -> ActivationEdit:
    """Add a vector to an activation (steering).

    x → x + factor · vector

    `vector` is broadcast to the shape of the activation; the other arguments are those of
    `zero_activation`.

    >>> edit = rg.edit.add_to_activation("decoder.0.residual_out", torch.ones(1), factor=2.0)
    >>> edit(torch.zeros(1, 2, 1)).flatten()
    tensor([2., 2.])
    """
    _check_tensor("vector", vector)
    check_finite("factor", factor)

    def add(x: Tensor) -> Tensor:
        return x + factor * _broadcast("vector", vector, x, name).to(x.dtype)

    return _edit(name, add, positions, heads)


@register_edit(factor=Range(-2, 4, 1))
def scale_activation(
    name: str,
    factor: float,
    *,
    positions: Selection = None,
    heads: Selection = None,
    units: Selection = None,
) -> ActivationEdit:
    """Multiply an activation by a factor.

    The other arguments are those of `zero_activation`.

    >>> rg.edit.scale_activation("decoder.0.mlp.out", 3.0)(torch.ones(1, 1, 2))
    tensor([[[3., 3.]]])
    """
    check_finite("factor", factor)
    return _edit(name, lambda x: factor * x, positions, heads, units)


def _check_tensor(name: str, x: object) -> None:
    if not isinstance(x, Tensor):
        raise ShapeError(f"{name}: needs a tensor, got a {type(x).__name__}; try torch.tensor(…)")


def _broadcast(argument: str, value: Tensor, x: Tensor, name: str) -> Tensor:
    try:
        return value.to(x.device).expand(x.shape)
    except RuntimeError:
        raise ShapeError(
            f"{argument}: needs a shape that broadcasts to {tuple(x.shape)}, that of {name}, "
            f"got {tuple(value.shape)}"
        ) from None


def _edit(
    name: str, change: Callable[[Tensor], Tensor], positions: Selection, heads: Selection,
    units: Selection = None,
) -> ActivationEdit:  # fmt: skip
    given = {"positions": positions, "heads": heads, "units": units}
    return ActivationEdit(
        name, "", change, **{key: as_selection(key, x) for key, x in given.items()}
    )


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

    return _edit_choice(name, chosen, change, positions)


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

    return _edit_choice(name, forced, change, positions)


Change = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def _edit_choice(
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
