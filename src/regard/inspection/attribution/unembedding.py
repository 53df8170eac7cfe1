"""From the residual stream to the logits: the final norm and the head of any model."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from regard.errors import LookError
from regard.inspection.adapters.block_layout import is_linear, linear_matrix
from regard.inspection.attribution.residual_parts import FrozenNorm, ResidualStream, freeze_norm
from regard.nn import Readout
from regard.ops.packed_linear import linear

TOLERANCE = 1e-3  # of the reproduced logits, relative; half precision 3e-2
MAX_CHECKED = 64  # positions at which the head is compared with the model's logits


@dataclass(frozen=True, eq=False)
class Unembedding:
    """logits = softcap(factor · W norm(x) + bias) of one model.

    >>> model = rg.models.LanguageModel(rg.models.language_small(vocab=9, layers=1)).eval()
    >>> stream = rg.inspection.record_stream(model, torch.tensor([[1, 2, 3]]))
    >>> head = find_unembedding(stream)
    >>> torch.allclose(head.logits(stream.state(1)), stream.logits, atol=1e-5)
    True
    """

    norm: nn.Module | None
    weight: Tensor  # (vocab, dim)
    bias: Tensor | None
    factor: float = 1.0
    softcap: float | None = None

    @torch.no_grad()
    def logits(self, x: Tensor) -> Tensor:
        """The logits of a state of the residual stream (the logit lens)."""
        y = x if self.norm is None else self.norm(x.to(self.weight.dtype))
        out = linear(y.to(self.weight.dtype).flatten(0, -2), self.weight).view(*y.shape[:-1], -1)
        out = out if self.factor == 1 else out.mul_(self.factor)  # in place: as large as can be
        out = out if self.bias is None else out.add_(self.bias)
        return out if self.softcap is None else self.softcap * torch.tanh(out / self.softcap)

    def freeze(self, x: Tensor) -> "FrozenUnembedding":
        """The linear map from parts of x to logits, the norm's scale held fixed (no softcap)."""
        return FrozenUnembedding(self, None if self.norm is None else freeze_norm(self.norm, x))


@dataclass(frozen=True, eq=False)
class FrozenUnembedding:
    """The linear map from parts of one state to logits."""

    unembedding: Unembedding
    norm: FrozenNorm | None

    def direction(self, token: int, against: int | None = None) -> Tensor:
        """The direction a in the residual stream with a · part = logit (difference) of the part."""
        u = self._difference(self.unembedding.weight, token, against) * self.unembedding.factor
        return u if self.norm is None else self.norm.pull_back(u)

    def constant(self, token: int, against: int | None = None) -> Tensor:
        """What the biases of norm and head add to the logit (difference)."""
        weight, bias = self.unembedding.weight, self.unembedding.bias
        total = weight.new_zeros(()) if bias is None else self._difference(bias, token, against)
        if self.norm is not None:
            u = self._difference(weight, token, against)
            total = total + self.unembedding.factor * u @ self.norm.bias
        return total

    def _difference(self, x: Tensor, token: int, against: int | None) -> Tensor:
        """One row, or the difference of two, in float32 or better."""
        rows = x[[token] if against is None else [token, against]]
        rows = rows if x.dtype == torch.float64 else rows.float()
        return rows[0] if against is None else rows[0] - rows[1]


def find_unembedding(stream: ResidualStream) -> Unembedding:
    """The final norm and head of the model, checked against the logits of the recorded run."""
    model = stream.model
    point = stream.points.get(f"{stream.stack}.final_norm")
    norm = None if point is None or point.name not in stream.activations else point.module
    end, logits = stream.state(stream.depth), stream.logits.detach()
    if end.shape[:-1] == logits.shape[:-1]:  # a check of all would cost as much as the head
        step = max(1, -(-end.shape[1] // MAX_CHECKED))
        end, logits = end[:, ::step], logits[:, ::step]
    logits = logits.float()
    weight, bias = _head(model, end)
    softcap = getattr(getattr(model, "config", None), "final_logit_softcapping", None)
    if weight.shape[1] != end.shape[-1]:
        raise LookError(
            f"model: needs a head as wide as its last state, {end.shape[-1]}, got one of "
            f"{weight.shape[1]}"
        )
    allowed = 3e-2 if weight.dtype in (torch.float16, torch.bfloat16) else TOLERANCE
    errors = []
    for final in (norm, None):
        head = Unembedding(final, weight, bias, 1.0, softcap)
        lens = head.logits(end).float()
        if lens.shape != logits.shape:
            continue
        if softcap is None and bias is None:  # Cohere, Granite and T5 scale their logits
            factor = float((lens * logits).sum() / lens.square().sum())
            factor = 1.0 if abs(factor - 1) < 1e-5 else factor
            head, lens = replace(head, factor=factor), factor * lens
        errors.append(float((lens - logits).abs().max() / logits.abs().max().clamp(min=1e-30)))
        if errors[-1] < allowed:
            return head
    size = f" (relative error {min(errors):.2g})" if errors else ""
    raise LookError(
        f"model: needs logits that are W norm(x) of its last state, got a {type(model).__name__} "
        f"whose head computes something else{size}"
    )


def _head(model: nn.Module, like: Tensor) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of the head."""
    readout = getattr(model, "readout", None)
    if isinstance(readout, Readout):
        name = "embedding" if hasattr(model, "embedding") else "target_embedding"
        tied = getattr(model, name).token_embeddings
        return (tied if readout.weight is None else readout.weight), readout.bias
    get: Callable[[], nn.Module | None] = getattr(model, "get_output_embeddings", lambda: None)
    head = get() or getattr(model, "head", None) or getattr(model, "classifier", None)
    if not isinstance(head, nn.Module) or not (is_linear(head) or isinstance(head, nn.Embedding)):
        raise LookError(
            f"model: needs a linear head over a vocabulary, got {type(model).__name__} without; "
            "try the model class with a language-modelling head"
        )
    return linear_matrix(head, like).mT, getattr(head, "bias", None)
