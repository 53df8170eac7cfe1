"""Sampling of tokens: temperature, top-k, top-p and min-p."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Sampling options, applied in this order.

    p_y ∝ exp(logit_y / temperature), truncated and renormalized

    Args:
        temperature: Of the softmax; 0 is greedy.
        top_k: Keep the k most likely tokens.
        top_p: Then the smallest set with at least this probability (nucleus sampling).
        min_p: Then tokens with at least this fraction of the largest probability.
        seed: Random seed; row n of a batch uses seed + n, so that it samples the same alone.

    >>> Sampling(temperature=0.8, top_p=0.95)
    Sampling(temperature=0.8, top_k=None, top_p=0.95, min_p=None, seed=0)
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ConfigError(f"temperature: needs 0 or more, got {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"top_k: needs 1 or more, got {self.top_k}; try None for all")
        for name in ("top_p", "min_p"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1:
                raise ConfigError(f"{name}: needs 0 < {name} ≤ 1, got {value}; try None for all")


def sampling_distribution(
    logits: Float[Tensor, "*batch vocab"], sampling: Sampling
) -> tuple[Float[Tensor, "*batch count"], Int[Tensor, "*batch count"]]:
    """Probabilities and tokens to sample from, most likely first; 0 where truncated.

    >>> logits = torch.tensor([0.1, 0.5, 0.3, 0.1]).log()
    >>> sampling_distribution(logits, Sampling(top_p=0.7))  # 0.5 < 0.7 ≤ 0.5 + 0.3
    (tensor([0.6250, 0.3750, 0.0000, 0.0000]), tensor([1, 2, 0, 3]))
    """
    if sampling.top_k is not None and sampling.top_k < logits.shape[-1]:
        logits, tokens = logits.topk(sampling.top_k, sorted=True)
    else:
        logits, tokens = logits.sort(dim=-1, descending=True, stable=True)
    if sampling.temperature == 0:
        probabilities = torch.zeros_like(logits)
        probabilities[..., 0] = 1
        return probabilities, tokens
    # the maximum is subtracted first: a small temperature must not overflow
    probabilities = ((logits - logits[..., :1]) / sampling.temperature).softmax(-1)
    if sampling.top_p is not None:
        before = probabilities.cumsum(-1) - probabilities
        least = sampling.top_p * probabilities.sum(-1, keepdim=True)
        probabilities = probabilities.masked_fill(before >= least, 0)
    if sampling.min_p is not None:
        least = sampling.min_p * probabilities[..., :1]
        probabilities = probabilities.masked_fill(probabilities < least, 0)
    return probabilities / probabilities.sum(-1, keepdim=True), tokens


def sample_tokens(
    logits: Float[Tensor, "batch vocab"], sampling: Sampling, uniform: Float[Tensor, " batch"]
) -> Int[Tensor, " batch"]:
    """Sample one token per row by inverse transform of a uniform number in [0, 1).

    y = the first token, most likely first, whose cumulative probability exceeds `uniform`
    """
    probabilities, tokens = sampling_distribution(logits, sampling)
    # in double: the cumulative sum of a large vocabulary is inexact in float
    total = probabilities.double().cumsum(-1)
    index = torch.searchsorted(total, uniform.to(total)[:, None] * total[:, -1:], right=True)
    last = (probabilities > 0).sum(-1, keepdim=True).clamp(min=1) - 1
    return tokens.gather(1, index.minimum(last))[:, 0]


def row_uniforms(seed: int, rows: int, count: int) -> Float[Tensor, "rows count"]:
    """Uniform numbers of `count` steps, from one generator per row."""
    generators = [torch.Generator().manual_seed(seed + row) for row in range(rows)]
    return torch.stack([torch.rand(count, generator=g, dtype=torch.float64) for g in generators])
