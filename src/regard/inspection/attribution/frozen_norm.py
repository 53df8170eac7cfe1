"""A norm with its statistics held fixed: the linear map that it applied to one input."""

from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor, nn

from regard.errors import LookError
from regard.inspection.adapters.module_tracker import check_model

TOLERANCE = 1e-3  # of the reproduced output, relative to its largest number; bf16 gets 2e-2


@dataclass(frozen=True, eq=False)
class FrozenNorm:
    """y = scale · (x - mean(x)) ⊙ gain + bias (without the mean for RMS norms), scale held fixed.

    With its scale fixed a norm is linear, so the parts of its input have parts of its output.

    >>> x = torch.tensor([[1.0, 2.0, 6.0]])
    >>> norm = torch.nn.LayerNorm(3)
    >>> frozen = freeze_norm(norm, x)
    >>> torch.allclose(frozen.apply(0.25 * x) + frozen.apply(0.75 * x) + frozen.bias, norm(x))
    True
    """

    scale: Tensor  # (*batch, 1)
    gain: Tensor  # (dim,)
    bias: Tensor  # (dim,)
    is_centred: bool

    def at(self, *index: int) -> "FrozenNorm":
        """The map of one position."""
        return replace(self, scale=self.scale[index])

    def apply(self, part: Tensor) -> Tensor:
        """What a part of the input adds to the output."""
        if self.is_centred:
            part = part - part.mean(-1, keepdim=True)
        return self.scale * part * self.gain

    def pull_back(self, direction: Tensor) -> Tensor:
        """The direction a with a · part = direction · apply(part)."""
        back = self.scale * direction * self.gain
        return back - back.mean(-1, keepdim=True) if self.is_centred else back


def freeze_norm(norm: nn.Module, x: Tensor) -> FrozenNorm:
    """The linear map that a layer norm or RMS norm of any library applied to an input.

    Which of the known formulas it computes (centred or not, gain w or 1 + w) is found by
    comparing with its output.

    >>> freeze_norm(torch.nn.RMSNorm(2, eps=0.0), torch.tensor([[3.0, 4.0]])).scale  # 1 / √12.5
    tensor([[0.2828]])
    """
    check_model(norm)
    x = x.detach()
    try:
        with torch.no_grad():
            y = norm(x).to(_compute(x).dtype)
    except TypeError as error:  # Zaya's norm of queries and keys together
        raise LookError(f"model: needs norms of one input, got {type(norm).__name__}") from error
    x = _compute(x)
    weight = next((getattr(norm, n) for n in ("weight", "gain", "scale") if _has(norm, n)), None)
    bias = getattr(norm, "bias", None)
    names = [n for n in ("eps", "variance_epsilon", "epsilon") if hasattr(norm, n)]
    # OLMo has it in its code only
    known = [getattr(norm, n) for n in names[:1]] or [0.0, 1e-5, 1e-6, 1e-12]
    known = [torch.finfo(x.dtype).eps if eps is None else eps for eps in known]  # torch's RMSNorm
    ones = torch.ones(x.shape[-1], dtype=x.dtype, device=x.device)
    weight = ones if weight is None else weight.detach().to(x)
    bias = bias.detach().to(x) if isinstance(bias, Tensor) else torch.zeros_like(ones)
    errors: list[Tensor] = []
    candidates: list[FrozenNorm] = []
    for is_centred, eps in product((True, False), known):
        centred = x - x.mean(-1, keepdim=True) if is_centred else x
        scale = (centred.square().mean(-1, keepdim=True) + eps).rsqrt()
        for gain in (weight, 1 + weight):
            candidates.append(FrozenNorm(scale, gain, bias, is_centred))
            errors.append((candidates[-1].apply(x) + bias - y).abs().max())
    relative = torch.stack(errors) / y.abs().max().clamp(min=1e-30)  # one transfer for all
    error, frozen = min(zip(relative.tolist(), candidates, strict=True), key=lambda pair: pair[0])
    allowed = TOLERANCE if norm_dtype(norm, y) == torch.float32 else 2e-2
    if not error < allowed:
        raise LookError(
            f"model: needs layer norms or RMS norms to be split into parts, got a "
            f"{type(norm).__name__} that computes something else (relative error {error:.2g})"
        )
    return frozen


def norm_dtype(norm: nn.Module, y: Tensor) -> torch.dtype:
    """The precision of a norm's parameters, or of its output."""
    parameter = next(norm.parameters(), None)
    dtype = y.dtype if parameter is None else parameter.dtype
    return torch.float32 if dtype == torch.float64 else dtype


def _has(module: nn.Module, name: str) -> bool:
    return isinstance(getattr(module, name, None), Tensor)


def _compute(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
