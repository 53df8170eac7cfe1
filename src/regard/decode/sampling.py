"""Tokens drawn by their probability, from all of the vocabulary or from its likely part."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How to draw: how boldly, from how many, and with which luck.

    p_y ∝ exp(logit_y / temperature), of which only a part is kept, and made to sum to 1 again

    `top_k` keeps the k likeliest; `top_p` then the fewest that hold a share of p; `min_p` then
    those of at least that share of the likeliest one's. A temperature of 0 is greedy. Row n of a
    batch draws with seed + n, so that it draws the same alone.

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
            share = getattr(self, name)
            if share is not None and not 0 < share <= 1:
                raise ConfigError(f"{name}: needs 0 < share ≤ 1, got {share}; try None for all")


def sampling_distribution(
    logits: Float[Tensor, "*batch vocab"], sampling: Sampling
) -> tuple[Float[Tensor, "*batch kept"], Int[Tensor, "*batch kept"]]:
    """The part of the vocabulary that is drawn from: its shares, likeliest first, and its tokens.

    What top_p or min_p leave out has a share of 0.

    >>> logits = torch.tensor([0.1, 0.5, 0.3, 0.1]).log()
    >>> shares, tokens = sampling_distribution(logits, Sampling(top_p=0.7))
    >>> shares, tokens  # 0.5 is less than 0.7; 0.5 + 0.3 is enough
    (tensor([0.6250, 0.3750, 0.0000, 0.0000]), tensor([1, 2, 0, 3]))
    """
    if sampling.top_k is not None and sampling.top_k < logits.shape[-1]:
        kept, tokens = logits.topk(sampling.top_k, sorted=True)
    else:
        kept, tokens = logits.sort(dim=-1, descending=True, stable=True)
    if sampling.temperature == 0:
        shares = torch.zeros_like(kept)
        shares[..., 0] = 1
        return shares, tokens
    # the largest first brought to 0: a small temperature then takes nothing to infinity
    shares = ((kept - kept[..., :1]) / sampling.temperature).softmax(-1)
    if sampling.top_p is not None:
        before = shares.cumsum(-1) - shares
        shares = shares.masked_fill(before >= sampling.top_p * shares.sum(-1, keepdim=True), 0)
    if sampling.min_p is not None:
        shares = shares.masked_fill(shares < sampling.min_p * shares[..., :1], 0)
    return shares / shares.sum(-1, keepdim=True), tokens


def sample_tokens(
    logits: Float[Tensor, "batch vocab"], sampling: Sampling, uniform: Float[Tensor, " batch"]
) -> Int[Tensor, " batch"]:
    """The token that each row's luck, evenly from 0 to 1, falls on.

    y = the first of the likeliest whose shares sum to more than luck

    >>> logits = torch.tensor([[0.1, 0.5, 0.4]]).log().expand(3, -1)
    >>> sample_tokens(logits, Sampling(), torch.tensor([0.4, 0.6, 0.95]))
    tensor([1, 2, 0])
    """
    shares, tokens = sampling_distribution(logits, sampling)
    # in double precision: the sum of a large vocabulary's shares is then 1 to the last token
    ends = shares.double().cumsum(-1)
    place = torch.searchsorted(ends, uniform.to(ends)[:, None] * ends[:, -1:], right=True)
    last = (shares > 0).sum(-1, keepdim=True).clamp(min=1) - 1
    return tokens.gather(1, place.minimum(last))[:, 0]


def row_uniforms(seed: int, rows: int, count: int) -> Float[Tensor, "rows count"]:
    """A row's luck for `count` draws, each row its own.

    >>> torch.equal(row_uniforms(5, 2, 3)[1], row_uniforms(6, 1, 3)[0])
    True
    """
    made = [torch.Generator().manual_seed(seed + row) for row in range(rows)]
    return torch.stack([torch.rand(count, generator=g, dtype=torch.float64) for g in made])
