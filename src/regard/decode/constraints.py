"""What an answer may hold: a beginning, only some tokens or words, a least length."""

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.errors import ConfigError, ShapeError


@runtime_checkable
class TokenConstraint(Protocol):
    """Which tokens may come next, by what each row has written; a function of your own will do.

    >>> isinstance(MinNewTokens(2, end=0), TokenConstraint)
    True
    """

    def __call__(
        self, generated: Int[Tensor, "rows time"], vocab: int
    ) -> Bool[Tensor, "... vocab"] | None:
        """One row for each that writes, or one for all; None where every token may come."""
        ...


class ForcedPrefix:
    """Every answer begins like this: one beginning for all, or one for each of the batch.

    >>> rule = ForcedPrefix([4, 6])
    >>> rule(torch.tensor([[4]]), vocab=8).nonzero().tolist()  # after 4, row 0 may write 6
    [[0, 6]]
    >>> rule(torch.tensor([[4, 6]]), vocab=8) is None
    True
    """

    def __init__(self, tokens: Sequence[int] | Sequence[Sequence[int]]):
        rows = [list(row) if isinstance(row, Sequence) else [row] for row in tokens]
        one = not any(isinstance(row, Sequence) for row in tokens)
        self.rows = [[token for row in rows for token in row]] if one else rows

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
        # a beam has several rows for each of the batch, side by side
        return allowed.repeat_interleave(count // len(self.rows), 0).to(generated.device)


class AllowedTokens:
    """No token but these, and the end.

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
    """Any token but these.

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
    """No end before so many tokens.

    >>> rule = MinNewTokens(2, end=0)
    >>> rule(torch.tensor([[3]]), vocab=3), rule(torch.tensor([[3, 3]]), vocab=3)
    (tensor([False,  True,  True]), None)
    """

    def __init__(self, min_tokens: int, *, end: int):
        self.min_tokens, self.end = min_tokens, end

    def __call__(self, generated: Tensor, vocab: int) -> Tensor | None:
        return (
            None
            if generated.shape[1] >= self.min_tokens
            else SuppressTokens([self.end])(generated, vocab)
        )


class AllowedWords:
    """No words but these, each whole, and the end after a whole one; a word is a list of tokens.

    >>> rule = AllowedWords([[4], [4, 5], [6]], end=1)
    >>> rule(torch.tensor([[6, 4]]), vocab=7).nonzero()[:, 1].tolist()  # any word, 5, or the end
    [1, 4, 5, 6]
    """

    def __init__(self, words: Iterable[Sequence[int]], *, end: int):
        self.end, self.tree = end, _Node()
        for word in words:
            node = self.tree
            for token in word:
                node = node.after.setdefault(token, _Node())
            node.is_word = True
        if self.tree.is_word or not self.tree.after:
            raise ConfigError("words: need one or more, none of them empty, got others")
        # where each beginning may stand: a word and the start of a longer one look the same
        self.nodes_by_prefix: dict[tuple[int, ...], list[_Node]] = {(): [self.tree]}

    def __call__(self, generated: Tensor, vocab: int) -> Tensor:
        allowed = torch.zeros(len(generated), vocab, dtype=torch.bool)
        for free, row in zip(allowed, generated.tolist(), strict=True):
            places = self._after(tuple(row))
            tokens = {token for node in places for token in node.after}
            tokens |= {self.end} if self.tree in places or not places else set()
            free[[_inside(token, vocab) for token in tokens]] = True
        return allowed.to(generated.device)

    def _after(self, written: tuple[int, ...]) -> list["_Node"]:
        if written not in self.nodes_by_prefix:
            before, token = self._after(written[:-1]), written[-1]
            found = [node.after[token] for node in before if token in node.after]
            again = any(node.is_word for node in found)
            self.nodes_by_prefix[written] = [*found, *([self.tree] if again else [])]
        return self.nodes_by_prefix[written]


class _Node:
    """A beginning of words: what may follow, and whether it is a word already."""

    def __init__(self) -> None:
        self.after: dict[int, _Node] = {}
        self.is_word = False


def allowed_mask(
    constraints: Sequence[TokenConstraint],
    generated: Int[Tensor, "rows time"],
    vocab: int,
    live: Bool[Tensor, " rows"] | None = None,
) -> Bool[Tensor, "... vocab"] | None:
    """What all rules allow together; None where they allow everything.

    A row that is `live` must be left a token; one that has ended needs none.

    >>> allowed_mask([AllowedTokens([3, 4], end=1), SuppressTokens([4])], torch.tensor([[3]]), vocab=5)
    tensor([False,  True, False,  True, False])
    """
    together = None
    for rule in constraints:
        one = rule(generated, vocab)
        if one is not None:
            together = one if together is None else together & one
    if together is None:
        return None
    stuck = ~together.any(-1) if live is None else live & ~together.any(-1)
    if stuck.any():
        raise ConfigError(
            f"constraints: need to leave a token after {generated.shape[1]} tokens, got none left; "
            "try fewer constraints, or allow the end"
        )
    return together


def mask_logits(
    logits: Float[Tensor, "rows vocab"], allowed: Bool[Tensor, "... vocab"] | None
) -> Float[Tensor, "rows vocab"]:
    """The logits with -inf where a token may not come.

    >>> mask_logits(torch.zeros(1, 3), torch.tensor([True, False, True]))
    tensor([[0., -inf, 0.]])
    """
    if allowed is None:
        return logits
    if allowed.ndim == 1 and allowed.device.type == "cpu":  # the same few for all rows: far quicker
        return logits.index_fill(1, (~allowed).nonzero()[:, 0], -torch.inf)
    return logits.masked_fill(~allowed, -torch.inf)


def _inside(token: int, vocab: int) -> int:
    if not 0 <= token < vocab:
        raise ConfigError(f"tokens: need 0 to {vocab - 1}, the vocabulary, got {token}")
    return token
