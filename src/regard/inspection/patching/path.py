"""Path patching: the effect of one component on another, all other paths held fixed."""

import glob
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from regard.errors import LookError
from regard.inspection.adapters.activation_points import find_activations, name_of_part
from regard.inspection.adapters.model_calls import run_model
from regard.inspection.edits.activations import ActivationEdit, set_activation
from regard.inspection.edits.base import Edit
from regard.inspection.edits.keys import patch
from regard.inspection.edits.what_if import what_if
from regard.inspection.patching.sweep import Metric, metric_value
from regard.inspection.record.look import look

Sender = tuple[str, int] | str  # ("decoder.0.self", head), or "decoder.0.mlp"
Receiver = tuple[str, int, Literal["queries", "keys", "values"]] | str


@dataclass(frozen=True)
class PathEffect:
    """The metric of a run in which one path carries the corrupt input.

    `effect` is 0 where the path carries nothing and 1 where it carries the whole difference.

    >>> PathEffect(clean=3.0, corrupt=1.0, patched=2.5).effect
    0.25
    """

    clean: float
    corrupt: float
    patched: float

    @property
    def effect(self) -> float:
        """(patched - clean) / (corrupt - clean)."""
        return (self.patched - self.clean) / (self.corrupt - self.clean)


@torch.no_grad()
def path(
    model: nn.Module, clean: Any, corrupt: Any, metric: Metric, *, sender: Sender,
    receiver: Receiver,
) -> PathEffect:  # fmt: skip
    """The effect of a sender on the metric through one receiver only (Wang et al. 2022).

    1. run clean, the sender's output from the corrupt run, every other part as in the clean run
    2. run clean, the receiver's input as it was in 1

    Args:
        model: A model with pre-norm blocks, ours or of transformers, in eval mode.
        clean: Inputs: a tensor, a tuple of arguments or a mapping.
        corrupt: Inputs of the same shape.
        metric: Scalar of the logits.
        sender: A head, ("decoder.0.self", 3), or an MLP or attention, "decoder.0.mlp".
        receiver: Queries, keys or values of a head, ("decoder.1.self", 2, "keys"); an MLP,
            "decoder.1.mlp"; or "logits", the direct path.

    >>> model = rg.models.LanguageModel(rg.models.language_small(vocab=9, layers=2)).eval()
    >>> clean, corrupt = torch.tensor([[1, 2, 3]]), torch.tensor([[1, 5, 3]])
    >>> effect = rg.patching.path(
    ...     model, clean, corrupt, lambda logits: logits[0, -1, 4],
    ...     sender=("decoder.0.self", 3), receiver=("decoder.1.self", 2, "keys"),
    ... )  # fmt: skip
    >>> abs(effect.effect) < 1
    True
    """
    points = find_activations(model)
    name = name_of_part(points, sender if isinstance(sender, str) else sender[0])
    parts = [n for n in points if n.endswith((".heads", ".mlp.out"))]
    sent = f"{name}.out" if isinstance(sender, str) else f"{name}.heads"
    if sent not in points:
        raise LookError(
            f"sender: needs an attention or MLP such as 'decoder.0.mlp', got {sender!r}"
        )
    received, site = _receiver(model, receiver, points)
    recorded = [*parts, sent]
    with look(model, "", activations=recorded, max_bytes=1 << 40) as before:
        clean_value = metric_value(metric, run_model(model, clean))
    with look(model, "", activations=[sent], max_bytes=1 << 40) as other:
        corrupt_value = metric_value(metric, run_model(model, corrupt))
    inside = f"{name}." if isinstance(sender, str) else sent
    held = [n for n in parts if not n.startswith(inside)]
    edits: list[ActivationEdit] = [set_activation(n, before.activations[n]) for n in held]
    heads = None if isinstance(sender, str) else sender[1]
    if heads is not None:
        edits.append(set_activation(sent, before.activations[sent]))
    edits.append(set_activation(sent, other.activations[sent], heads=heads))
    if received == "logits":
        with what_if(model, *edits):
            return PathEffect(
                clean_value, corrupt_value, metric_value(metric, run_model(model, clean))
            )
    at, names = ("", [received]) if site is None else (site, None)
    with look(model, at, activations=names, max_bytes=1 << 40) as moved, what_if(model, *edits):
        run_model(model, clean)
    second: Edit | ActivationEdit
    if site is None:
        second = set_activation(received, moved.activations[received])
    else:
        assert not isinstance(receiver, str)
        second = patch(site, moved, receiver[2], heads=receiver[1])
    with what_if(model, second):
        patched = metric_value(metric, run_model(model, clean))
    return PathEffect(clean_value, corrupt_value, patched)


def _receiver(model: nn.Module, receiver: Receiver, points: Any) -> tuple[str, str | None]:
    """The activation to put in, or the glob of the attention whose component is put in."""
    if receiver == "logits":
        return "logits", None
    name = name_of_part(points, receiver if isinstance(receiver, str) else receiver[0])
    if isinstance(receiver, str):
        if f"{name}.in" not in points:
            raise LookError(
                "receiver: needs 'logits', an MLP such as 'decoder.1.mlp', or (attention, head, "
                f"'keys'), got {receiver!r}"
            )
        return f"{name}.in", None
    if f"{name}.in" not in points or receiver[2] not in ("queries", "keys", "values"):
        raise LookError(
            f"receiver: needs (attention, head, 'queries', 'keys' or 'values'), got {receiver!r}"
        )
    return "", f"{glob.escape(points[f'{name}.in'].path)}*"
