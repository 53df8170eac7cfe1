"""How the next token is chosen: temperature, top-k, top-p and min-p, and constraints."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.errors import ConfigError, ShapeError


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


@runtime_checkable
class TokenConstraint(Protocol):
    """Protocol: which tokens may come next, given those generated; any such function works.

    >>> isinstance(MinNewTokens(2, end=0), TokenConstraint)
    True
    """

    def __call__(
        self, generated: Int[Tensor, "rows time"], vocab: int
    ) -> Bool[Tensor, "... vocab"] | None:
        """A mask with one row per sequence, or one for all; None where every token is allowed."""
        ...


class ForcedPrefix:
    """Every sequence starts with these tokens: one prefix for all, or one per batch row.

    >>> rule = ForcedPrefix([4, 6])
    >>> rule(torch.tensor([[4]]), vocab=8).nonzero().tolist()  # after 4 comes 6
    [[0, 6]]
    >>> rule(torch.tensor([[4, 6]]), vocab=8) is None
    True
    """

    def __init__(self, tokens: Sequence[int] | Sequence[Sequence[int]]):
        rows = [list(row) if isinstance(row, Sequence) else [row] for row in tokens]
        is_flat = not any(isinstance(row, Sequence) for row in tokens)
        self.rows = [[token for row in rows for token in row]] if is_flat else rows

    def __call__(self, generated: Tensor, vocab: int) -> Tensor | None:
        at, count = generated.shape[1], len(generated)
        if all(at >= len(row) for row in self.rows):
            return None
        if count % len(self.rows):
            raise ShapeError(f"prefix: needs one row or {count}, got {len(self.rows)}")
        allowed = torch.ones(len(self.rows), vocab, dtype=torch.bool)
        for free, row in zip(allowed, self.rows, strict=True):
            if at < len(row):
                free[:] = False
                free[_inside(row[at], vocab)] = True
        # a beam has several adjacent rows per batch row
        return allowed.repeat_interleave(count // len(self.rows), 0).to(generated.device)


class AllowedTokens:
    """Only these tokens and the end token.

    >>> AllowedTokens([3, 5], end=1)(torch.empty(1, 0, dtype=torch.long), vocab=6)
    tensor([False,  True, False,  True, False,  True])
    """

    def __init__(self, tokens: Iterable[int], *, end: int):
        self.tokens = sorted({*tokens, end})

    def __call__(self, generated: Tensor, vocab: int) -> Tensor:
        allowed = torch.zeros(vocab, dtype=torch.bool, device=generated.device)
        allowed[[_inside(token, vocab) for token in self.tokens]] = True
        return allowed


class SuppressTokens:
    """All tokens except these.

    >>> SuppressTokens([3])(torch.empty(1, 0, dtype=torch.long), vocab=5)
    tensor([ True,  True,  True, False,  True])
    """

    def __init__(self, tokens: Iterable[int]):
        self.tokens = sorted(set(tokens))

    def __call__(self, generated: Tensor, vocab: int) -> Tensor:
        allowed = torch.ones(vocab, dtype=torch.bool, device=generated.device)
        allowed[[_inside(token, vocab) for token in self.tokens]] = False
        return allowed


class MinNewTokens:
    """No end token before this many tokens.

    >>> rule = MinNewTokens(2, end=0)
    >>> rule(torch.tensor([[3]]), vocab=3), rule(torch.tensor([[3, 3]]), vocab=3)
    (tensor([False,  True,  True]), None)
    """

    def __init__(self, min_tokens: int, *, end: int):
        self.min_tokens, self.end = min_tokens, end

    def __call__(self, generated: Tensor, vocab: int) -> Tensor | None:
        if generated.shape[1] >= self.min_tokens:
            return None
        return SuppressTokens([self.end])(generated, vocab)


class AllowedWords:
    """Only sequences of these words, each a list of tokens; the end token only after a whole word.

    >>> rule = AllowedWords([[4], [4, 5], [6]], end=1)
    >>> rule(torch.tensor([[6, 4]]), vocab=7).nonzero()[:, 1].tolist()  # a new word, 5, or the end
    [1, 4, 5, 6]
    """

    def __init__(self, words: Iterable[Sequence[int]], *, end: int):
        self.end, self.words = end, set(map(tuple, words))
        if () in self.words or not self.words:
            raise ConfigError("words: needs one or more, none of them empty, got others")
        self.next_tokens = defaultdict[tuple[int, ...], set[int]](set)  # after the start of a word
        for word in self.words:
            for n, token in enumerate(word):
                self.next_tokens[word[:n]].add(token)
        # a prefix may be in several words: the end of one can be the start of a longer one
        self.starts_by_prefix: dict[tuple[int, ...], list[tuple[int, ...]]] = {(): [()]}

    def __call__(self, generated: Tensor, vocab: int) -> Tensor:
        allowed = torch.zeros(len(generated), vocab, dtype=torch.bool)
        for free, row in zip(allowed, generated.tolist(), strict=True):
            starts = self._starts(tuple(row))
            tokens = {self.end} if () in starts or not starts else set[int]()
            tokens = tokens.union(*(self.next_tokens.get(start, ()) for start in starts))
            free[[_inside(token, vocab) for token in tokens]] = True
        return allowed.to(generated.device)

    def _starts(self, prefix: tuple[int, ...]) -> list[tuple[int, ...]]:
        """The starts of words that a prefix may end with, () after a whole word."""
        if prefix not in self.starts_by_prefix:
            before, token = self._starts(prefix[:-1]), prefix[-1]
            starts = [(*x, token) for x in before if token in self.next_tokens.get(x, ())]
            restart = [()] if self.words.intersection(starts) else []
            self.starts_by_prefix[prefix] = [*starts, *restart]
        return self.starts_by_prefix[prefix]


def allowed_mask(
    constraints: Sequence[TokenConstraint],
    generated: Int[Tensor, "rows time"],
    vocab: int,
    live: Bool[Tensor, " rows"] | None = None,
) -> Bool[Tensor, "... vocab"] | None:
    """Tokens that all constraints allow; None for all. Raises if a `live` row has none."""
    allowed = None
    for constraint in constraints:
        mask = constraint(generated, vocab)
        if mask is not None:
            allowed = mask if allowed is None else allowed & mask
    if allowed is None:
        return None
    stuck = ~allowed.any(-1) if live is None else live & ~allowed.any(-1)
    if stuck.any():
        raise ConfigError(
            f"constraints: need to leave a token after {generated.shape[1]} tokens, got none left; "
            "try fewer constraints, or allow the end"
        )
    return allowed


def constrain_logits(
    logits: Float[Tensor, "rows vocab"],
    constraints: Sequence[TokenConstraint],
    generated: Int[Tensor, "rows time"],
    live: Bool[Tensor, " rows"],
) -> Float[Tensor, "rows vocab"]:
    """Logits with -inf where a token is not allowed."""
    allowed = allowed_mask(constraints, generated, logits.shape[-1], live)
    if allowed is None:
        return logits
    if allowed.ndim == 1 and allowed.device.type == "cpu":  # same for all rows: much faster
        return logits.index_fill(1, (~allowed).nonzero()[:, 0], -torch.inf)
    return logits.masked_fill(~allowed, -torch.inf)


def _inside(token: int, vocab: int) -> int:
    if not 0 <= token < vocab:
        raise ConfigError(f"tokens: need 0 to {vocab - 1}, the vocabulary, got {token}")
    return token
