"""Embeddings of tokens, with positions and segments, and of image patches."""

from functools import reduce
from typing import Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.errors import ConfigError, ShapeError
from regard.nn.layers import Norm
from regard.ops import lookup_positions, sinusoidal
from regard.ops.patches import patch_grid

Positions = Literal["sinusoidal", "learned", "none"]


class TokenEmbedding(nn.Module):
    """Token embeddings plus position and segment embeddings.

    x_t = √dim · token_embeddings[token_t] + position(t) + segment_embeddings[segment_t]

    Args:
        vocab: size of the vocabulary.
        dim: width of the embeddings.
        positions: "sinusoidal", "learned" or "none".
        max_positions: number of learned positions.
        scale_embeddings: multiply token embeddings by √dim.
        segments: number of segment types (BERT), 0 for none.
        norm: layer norm after the sum (BERT).
        eps: of the norm.
        dropout: after the norm.

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
        std = dim**-0.5  # tied to the output, the embeddings then give logits of variance 1
        self.positions, self.scale = positions, dim**0.5 if scale_embeddings else 1.0
        self.token_embeddings = nn.Parameter(torch.randn(vocab, dim) * std)
        self.position_embeddings = self.segment_embeddings = None
        if positions == "learned":
            self.position_embeddings = nn.Parameter(torch.randn(max_positions, dim) * std)
        if segments:
            self.segment_embeddings = nn.Parameter(torch.randn(segments, dim) * std)
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
        x = reduce(torch.add, parts.values())  # sum() would start by adding 0
        return self.dropout(x if self.norm is None else self.norm(x))

    def parts(
        self,
        tokens: Int[Tensor, "*batch time"],
        *,
        segments: Int[Tensor, "*batch time"] | None = None,
        positions: Int[Tensor, "*_ time"] | None = None,
        offset: int = 0,
    ) -> dict[str, Tensor]:
        """The summands by name; `positions` are offset, offset + 1, … by default.

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
            segments = torch.zeros_like(tokens) if segments is None else segments
            parts["segment"] = F.embedding(segments, self.segment_embeddings)
        return parts

    def _learned(self, tokens: Tensor, positions: Tensor | None, offset: int) -> Tensor:
        assert self.position_embeddings is not None
        if positions is not None:
            return lookup_positions(self.position_embeddings, positions)
        last, count = offset + tokens.shape[-1] - 1, len(self.position_embeddings)
        if last >= count:  # known here without synchronising a GPU
            raise ShapeError(
                f"positions: needs at most {count - 1}, the end of the learned table, got {last}; "
                "try a shorter input, or sinusoidal or rotary positions"
            )
        return self.position_embeddings[offset : last + 1]


def _check_tokens(tokens: Tensor, vocab: int) -> None:
    # a check on a GPU would synchronise every step; there the kernel raises by itself
    if tokens.device.type == "cpu" and tokens.numel():
        low, high = tokens.aminmax()
        if low < 0 or high >= vocab:
            bad = low if low < 0 else high
            raise ShapeError(f"tokens: needs 0 … {vocab - 1}, the vocabulary, got {int(bad)}")


Images = Float[Tensor, "batch channel height width"]


class PatchEmbedding(nn.Module):
    """Patch embedding: a convolution whose kernel and stride are the patch size.

    token_n = W · flatten(patch_n) + b

    It equals a linear layer on flattened patches; `to_linear` and `from_linear` convert between.

    >>> PatchEmbedding(channels=3, dim=768, patch_size=16)(torch.zeros(1, 3, 224, 224)).shape
    torch.Size([1, 196, 768])
    """

    def __init__(self, channels: int, dim: int, patch_size: int):
        super().__init__()
        self.patch_size = patch_size
        self.project = nn.Conv2d(channels, dim, kernel_size=patch_size, stride=patch_size)

    def forward(self, images: Images) -> Float[Tensor, "batch time dim"]:
        channels = self.project.in_channels
        if images.ndim != 4 or images.shape[1] != channels:
            raise ShapeError(
                f"images: needs (batch, {channels}, height, width), got {tuple(images.shape)}"
            )
        height, width = images.shape[-2:]
        patch_grid(height, width, self.patch_size)  # raises: a convolution would drop the edges
        return rearrange(self.project(images), "batch dim h w -> batch (h w) dim")

    def to_linear(self) -> nn.Linear:
        """The same layer for flattened patches (`ops.patchify`)."""
        weight = self.project.weight
        linear = nn.Linear(weight[0].numel(), len(weight)).to(weight)
        linear.load_state_dict({"weight": weight.flatten(1), "bias": self.project.bias})
        return linear

    @classmethod
    def from_linear(cls, linear: nn.Linear, channels: int) -> "PatchEmbedding":
        """The convolution that equals `linear` on flattened square patches.

        >>> PatchEmbedding.from_linear(torch.nn.Linear(12, 8), channels=3).patch_size
        2
        """
        pixels = linear.in_features / channels
        patch_size = round(pixels**0.5)
        if patch_size * patch_size != pixels:
            raise ShapeError(
                f"linear: needs channels · patch_size² inputs, got {linear.in_features} for "
                f"channels={channels}"
            )
        embedding = cls(channels, linear.out_features, patch_size).to(linear.weight)
        shape = embedding.project.weight.shape
        bias = torch.zeros(len(linear.weight)) if linear.bias is None else linear.bias
        embedding.project.load_state_dict({"weight": linear.weight.view(shape), "bias": bias})
        return embedding


class ClassToken(nn.Module):
    """A learned class token, prepended to the sequence.

    [x_1 … x_N] → [cls; x_1 … x_N]

    >>> ClassToken(8)(torch.zeros(2, 196, 8)).shape
    torch.Size([2, 197, 8])
    """

    def __init__(self, dim: int):
        super().__init__()
        self.token = nn.Parameter(torch.empty(dim))
        nn.init.trunc_normal_(self.token, std=0.02)

    def forward(self, x: Float[Tensor, "batch time dim"]) -> Float[Tensor, "batch more dim"]:
        return torch.cat([self.token.to(x.dtype).expand(len(x), 1, -1), x], 1)
