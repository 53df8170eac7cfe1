"""Stacks of Transformer blocks, the relative biases that they share, and a final norm."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Unpack, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.errors import ShapeError
from regard.nn.attention import KeysValues, TokenInputs
from regard.nn.block import POST_LN, BlockOptions, DecoderBlock, EncoderBlock
from regard.nn.layers import Norm
from regard.ops import ALiBi, Bias, Buckets, Mask, RelativeKeys, Toeplitz, alibi_slopes


class RelativeBias(nn.Module):
    """Base class; calling a layer returns the bias with its learned table.

    >>> layer = ToeplitzBias(heads=2, radius=1)
    >>> isinstance(layer, RelativeBias), type(layer()).__name__
    (True, 'Toeplitz')
    """

    def forward(self) -> Bias:
        raise NotImplementedError


class BucketBias(RelativeBias):
    """T5's relative bias: one learned number per head and distance bucket.

    s_ij += table[bucket(j - i), head]

    >>> layer = BucketBias(heads=2, buckets=8)
    >>> layer.table.shape, layer().bidirectional
    (torch.Size([8, 2]), True)
    """

    def __init__(
        self, heads: int, *, buckets: int = 32, max_distance: int = 128, bidirectional: bool = True
    ):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(buckets, heads))
        self.bidirectional, self.max_distance = bidirectional, max_distance

    def forward(self) -> Buckets:
        return Buckets(self.table, self.bidirectional, self.max_distance)


class ToeplitzBias(RelativeBias):
    """One learned number per head and relative position, clipped at `radius`.

    s_ij += table[head, clip(j - i)]

    >>> ToeplitzBias(heads=2, radius=3).table.shape
    torch.Size([2, 7])
    """

    def __init__(self, heads: int, *, radius: int = 16):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(heads, 2 * radius + 1))

    def forward(self) -> Toeplitz:
        return Toeplitz(self.table)


class RelativeKeyBias(RelativeBias):
    """Relative position keys of Shaw et al. 2018, clipped at `radius`.

    s_ij += scale · q_i · table[clip(j - i)]

    >>> RelativeKeyBias(head_dim=4, radius=3).table.shape
    torch.Size([7, 4])
    """

    def __init__(self, head_dim: int, *, radius: int = 16):
        super().__init__()
        self.table = nn.Parameter(torch.randn(2 * radius + 1, head_dim) * head_dim**-0.5)

    def forward(self) -> RelativeKeys:
        return RelativeKeys(self.table)


class ALiBiBias(RelativeBias):
    """ALiBi: a linear penalty on distance with one fixed slope per head.

    s_ij -= slope_head · |i - j|

    >>> ALiBiBias(heads=2)().slopes
    tensor([0.0625, 0.0039])
    """

    slopes: Tensor

    def __init__(self, heads: int):
        super().__init__()
        self.register_buffer("slopes", alibi_slopes(heads), persistent=False)

    def forward(self) -> ALiBi:
        return ALiBi(self.slopes)


class TransformerStack(nn.Module):
    """Base class: blocks of one type, the relative bias they share, and the final norm."""

    block_type: type[EncoderBlock | DecoderBlock]

    def __init__(
        self,
        layers: int,
        dim: int,
        heads: int,
        options: BlockOptions | Sequence[BlockOptions] = POST_LN,
        *,
        final_norm: bool = False,
        relative: RelativeBias | None = None,
        **changes: Any,
    ):
        super().__init__()
        each = [options] * layers if isinstance(options, BlockOptions) else options
        each = [replace(one, **changes) for one in each]
        self.blocks = nn.ModuleList(self.block_type(dim, heads, one) for one in each)
        self.relative, self.norm = relative, None
        if final_norm:
            self.norm = Norm(dim, each[0].norm, eps=each[0].eps, bias=each[0].bias)

    def _add_relative(self, bias: Bias | Tensor | None) -> Bias | Tensor | None:
        if self.relative is None:
            return bias
        if isinstance(bias, Tensor):
            raise ShapeError(
                "bias: needs a Bias beside relative, got a Tensor; try biases.DenseBias(bias)"
            )
        return self.relative() if bias is None else self.relative() + bias


class Encoder(TransformerStack):
    """A stack of encoder blocks; with a causal mask, the stack of a language model.

    x = block_L(… block_1(x) …), then a norm if `final_norm`

    Args:
        layers: number of blocks.
        dim: width of the model.
        heads: number of attention heads.
        options: of every block, or one for each.
        final_norm: norm after the last block, as pre-LN stacks need.
        relative: layer of the relative position bias that all blocks share.
        **changes: single fields of the options.

    >>> Encoder(2, 8, 2, norm_first=True, final_norm=True)(torch.randn(1, 3, 8)).shape
    torch.Size([1, 3, 8])
    """

    block_type = EncoderBlock

    def forward(
        self,
        x: Float[Tensor, "*batch time dim"],
        *,
        mask: Mask | Bool[Tensor, "... _ _"] | Sequence[Mask] | None = None,
        bias: Bias | Float[Tensor, "... _ _"] | None = None,
        **inputs: Unpack[TokenInputs],
    ) -> Float[Tensor, "*batch time dim"]:
        """The output of the last block; `mask` is one for all layers, or a sequence of one each."""
        bias = self._add_relative(bias)
        masks = mask if isinstance(mask, list | tuple) else [mask] * len(self.blocks)
        for block, mask in zip(self.blocks, masks, strict=True):
            x = block(x, mask=mask, bias=bias, **inputs)
        return x if self.norm is None else self.norm(x)


class Decoder(TransformerStack):
    """A stack of decoder blocks that attend to one memory.

    x = block_L(… block_1(x, memory) …, memory), then a norm if `final_norm`

    The arguments are those of `Encoder`.

    >>> decoder, memory = Decoder(2, 8, 2), torch.randn(1, 5, 8)
    >>> projected = decoder.project_memory(memory)  # keys and values of every layer, for reuse
    >>> x = torch.randn(1, 3, 8)
    >>> torch.equal(decoder(x, projected), decoder(x, memory))
    True
    """

    block_type = DecoderBlock

    def forward(
        self,
        x: Float[Tensor, "*batch time dim"],
        memory: Float[Tensor, "*batch key dim"] | Sequence[KeysValues],
        *,
        mask: Mask | Bool[Tensor, "... _ _"] | None = None,
        memory_mask: Mask | Bool[Tensor, "... _ _"] | None = None,
        bias: Bias | Float[Tensor, "... _ _"] | None = None,
        **inputs: Unpack[TokenInputs],
    ) -> Float[Tensor, "*batch time dim"]:
        bias = self._add_relative(bias)
        memories = [memory] * len(self.blocks) if isinstance(memory, Tensor) else memory
        if len(memories) != len(self.blocks):
            raise ShapeError(
                f"memory: needs keys and values for {len(self.blocks)} layers, "
                f"got {len(memories)}; try project_memory"
            )
        for block, block_memory in zip(self.blocks, memories, strict=True):
            x = block(x, block_memory, mask=mask, memory_mask=memory_mask, bias=bias, **inputs)
        return x if self.norm is None else self.norm(x)

    def project_memory(self, memory: Float[Tensor, "*batch key dim"]) -> list[KeysValues]:
        """The keys and values of the memory for each layer, to be computed once and reused."""
        blocks = cast(Iterable[DecoderBlock], self.blocks)
        return [block.cross_attention.project_kv(memory) for block in blocks]
