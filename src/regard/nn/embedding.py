"""The input stage: what each token means, plus where it stands."""

from functools import reduce
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.errors import ConfigError, ShapeError
from regard.nn.norm import Norm
from regard.ops import lookup_positions, sinusoidal

Positions = Literal["sinusoidal", "learned", "none"]


class TokenEmbedding(nn.Module):
    """Tokens as vectors, with the code of their position added.

    x_t = √dim · table[token_t] + code(t)  (+ segment table),   √dim only if `scaled`

    Learned codes end at `max_positions`; `segments` counts the kinds of segment (0: none); `norm` is put
    after the sum where asked for (BERT).

    >>> layer = TokenEmbedding(10, 4, positions="none", scale_embeddings=False)
    >>> torch.equal(layer(torch.tensor([[7]]))[0, 0], layer.token_embeddings[7])
    True
    """

    def __init__(
        self,
        vocab: int,
        dim: int,
        *,
        positions: Positions = "sinusoidal",
        max_positions: int = 512,
        scale_embeddings: bool = True,
        segments: int = 0,
        norm: bool = False,
        eps: float = 1e-5,
        dropout: float = 0.0,
    ):
        super().__init__()
        if positions not in ("sinusoidal", "learned", "none"):
            raise ConfigError(f"positions: needs sinusoidal, learned or none, got {positions!r}")
        start = dim**-0.5  # a table used for the output too then gives scores of size one
        self.positions, self.scale = positions, dim**0.5 if scale_embeddings else 1.0
        self.token_embeddings = nn.Parameter(torch.randn(vocab, dim) * start)
        self.position_embeddings = self.segment_embeddings = None
        if positions == "learned":
            self.position_embeddings = nn.Parameter(torch.randn(max_positions, dim) * start)
        if segments:
            self.segment_embeddings = nn.Parameter(torch.randn(segments, dim) * start)
        self.norm = Norm(dim, eps=eps) if norm else None
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        tokens: Int[Tensor, "*batch time"],
        *,
        segments: Int[Tensor, "*batch time"] | None = None,
        positions: Int[Tensor, "*_ time"] | None = None,
        offset: int = 0,
    ) -> Float[Tensor, "*batch time dim"]:
        parts = self.parts(tokens, segments=segments, positions=positions, offset=offset)
        x = reduce(torch.add, parts.values())  # a sum would begin by adding zero to all of it
        return self.dropout(x if self.norm is None else self.norm(x))

    def parts(
        self,
        tokens: Int[Tensor, "*batch time"],
        *,
        segments: Int[Tensor, "*batch time"] | None = None,
        positions: Int[Tensor, "*_ time"] | None = None,
        offset: int = 0,
    ) -> dict[str, Tensor]:
        """What is summed, by name; `positions` are offset, offset + 1, … if not given.

        x = token + position + segment

        >>> list(TokenEmbedding(10, 4).parts(torch.tensor([[7, 7]])))
        ['token', 'position']
        """
        _check_tokens(tokens, len(self.token_embeddings))
        parts = {"token": F.embedding(tokens, self.token_embeddings) * self.scale}
        if self.position_embeddings is not None:
            parts["position"] = self._learned(tokens, positions, offset)
        elif self.positions == "sinusoidal":
            if positions is None:
                positions = torch.arange(offset, offset + tokens.shape[-1], device=tokens.device)
            code = sinusoidal(positions, self.token_embeddings.shape[-1])
            parts["position"] = code.to(self.token_embeddings.dtype)
        if self.segment_embeddings is not None:
            kinds = torch.zeros_like(tokens) if segments is None else segments
            parts["segment"] = F.embedding(kinds, self.segment_embeddings)
        return parts

    def _learned(self, tokens: Tensor, positions: Tensor | None, offset: int) -> Tensor:
        assert self.position_embeddings is not None
        if positions is not None:
            return lookup_positions(self.position_embeddings, positions)
        last = offset + tokens.shape[-1] - 1
        if last >= len(
            self.position_embeddings
        ):  # asked here, where it is known without asking a GPU
            raise ShapeError(
                f"positions: needs at most {len(self.position_embeddings) - 1}, the end of the learned table, "
                f"got {last}; try a shorter input, or sinusoidal or rotary positions"
            )
        return self.position_embeddings[offset : last + 1]


def _check_tokens(tokens: Tensor, vocab: int) -> None:
    # on a GPU the question would make every step wait; there the kernel raises by itself
    if tokens.device.type == "cpu" and tokens.numel():
        low, high = tokens.aminmax()
        if low < 0 or high >= vocab:
            bad = low if low < 0 else high
            raise ShapeError(f"tokens: needs 0 … {vocab - 1}, the vocabulary, got {int(bad)}")
