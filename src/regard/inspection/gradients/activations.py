"""Gradients of a score at named activations."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.errors import LookError
from regard.inspection.adapters.activation_points import (
    find_activations,
    hook_activations,
    match_activations,
)
from regard.inspection.adapters.model_calls import Scalar, check_scalar
from regard.inspection.adapters.module_tracker import check_model
from regard.inspection.adapters.snapshot import snapshot
from regard.inspection.record.sight import Activations


@dataclass(frozen=True, kw_only=True, eq=False)
class ActivationGradients:
    """A score, the activations it depends on, and its gradient at each.

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=9)).eval()
    >>> tokens = torch.tensor([[1, 2, 3]])
    >>> result = rg.inspection.activation_gradients(model, lambda m: m(tokens)[0, -1, 5], "*.heads")
    >>> result.gradients["decoder.1.self.heads"].shape  # (batch, time, head, value)
    torch.Size([1, 3, 4, 16])
    """

    score: float
    activations: Activations
    gradients: Activations


def activation_gradients(
    model: nn.Module, score: Scalar, activations: str | Sequence[str] = "*"
) -> ActivationGradients:
    """Gradient of a score at every named activation, from one backward pass.

    ∂score/∂x for each activation x; where the score does not depend on x it is 0

    Args:
        model: The model; it must not be compiled.
        score: Runs the model and returns the scalar to differentiate, such as one logit.
        activations: Globs over the names of `activation_names(model)`.

    >>> layer = rg.models.LanguageModel(rg.models.language_tiny(vocab=9)).eval()
    >>> tokens = torch.tensor([[1, 2, 3]])
    >>> result = activation_gradients(layer, lambda m: m(tokens)[0, -1, 5], "*.residual_out")
    >>> result.gradients["decoder.1.residual_out"][0, 0].abs().sum()  # of another position
    tensor(0.)
    """
    check_model(model)
    points = match_activations(find_activations(model), activations, "activations")
    values: list[tuple[str, Tensor]] = []
    inputs, gradients = Activations(), Activations()

    def record(name: str, x: Tensor) -> Tensor | None:
        if not x.is_floating_point():
            return None
        # a leaf where nothing below is trainable; else another node, so that a tensor that has two
        # names gets a gradient for each
        y = x.view_as(x) if x.requires_grad else x.detach().requires_grad_()
        values.append((name, y))
        inputs.append(name, snapshot(x))
        return y

    with hook_activations(points, record), torch.enable_grad():
        value = score(model)
    check_scalar("score", value)
    if not values:
        raise LookError("score: needs to run the model it gets, got no activation")
    grads = torch.autograd.grad(
        value, [x for _, x in values], allow_unused=True, materialize_grads=True
    )
    for (name, _), grad in zip(values, grads, strict=True):
        gradients.append(name, grad)
    return ActivationGradients(score=float(value.detach()), activations=inputs, gradients=gradients)
