"""Stacks of Transformer blocks, with a shared relative bias and a final norm."""

from collections.abc import Iterable, Sequence
from typing import Unpack, cast

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.errors import ShapeError
from regard.nn.attention import CacheUpdate, KeysValues
from regard.nn.block import BlockOptions, DecoderBlock, EncoderBlock
from regard.nn.norm import Norm
from regard.nn.relative_bias import RelativeBias
from regard.ops import Bias, Mask


class Encoder(nn.Module):
    """A stack of encoder blocks; with a causal mask, the stack of a language model.

    x = block_L(… block_1(x) …), then a norm if `final_norm`

    Args:
        layers: number of blocks.
        dim: width of the model.
        heads: number of attention heads.
        final_norm: norm after the last block, as pre-LN stacks need.
        relative: layer of the relative position bias that all blocks share.
        **options: see `BlockOptions`.

    >>> Encoder(2, 8, 2, norm_first=True, final_norm=True)(torch.randn(1, 3, 8)).shape
    torch.Size([1, 3, 8])
    """

    def __init__(
        self,
        layers: int,
        dim: int,
        heads: int,
        *,
        final_norm: bool = False,
        relative: RelativeBias | None = None,
        **options: Unpack[BlockOptions],
    ):
        super().__init__()
        self.blocks = nn.ModuleList(EncoderBlock(dim, heads, **options) for _ in range(layers))
        self.relative = relative
        self.norm = _final_norm(dim, options) if final_norm else None

    def forward(
        self,
        x: Float[Tensor, "*batch time dim"],
        *,
        mask: Mask | Bool[Tensor, "... _ _"] | Sequence[Mask] | None = None,
        bias: Bias | Float[Tensor, "... _ _"] | None = None,
        positions: Int[Tensor, "*_ time"] | None = None,
        offset: int = 0,
        cache: CacheUpdate | None = None,
    ) -> Float[Tensor, "*batch time dim"]:
        """The output of the last block; `mask` is one for all layers, or a sequence of one each."""
        bias = _add_relative(bias, self.relative)
        masks = mask if isinstance(mask, list | tuple) else [mask] * len(self.blocks)
        for block, mask in zip(self.blocks, masks, strict=True):
            x = block(x, mask=mask, bias=bias, positions=positions, offset=offset, cache=cache)
        return x if self.norm is None else self.norm(x)


class Decoder(nn.Module):
    """A stack of decoder blocks that attend to one memory.

    x = block_L(… block_1(x, memory) …, memory), then a norm if `final_norm`

    The arguments are those of `Encoder`; `source_dim` is the width of the memory.

    >>> decoder, memory = Decoder(2, 8, 2), torch.randn(1, 5, 8)
    >>> projected = decoder.project_memory(memory)  # keys and values of every layer, for reuse
    >>> x = torch.randn(1, 3, 8)
    >>> torch.equal(decoder(x, projected), decoder(x, memory))
    True
    """

    def __init__(
        self,
        layers: int,
        dim: int,
        heads: int,
        *,
        source_dim: int | None = None,
        final_norm: bool = False,
        relative: RelativeBias | None = None,
        **options: Unpack[BlockOptions],
    ):
        super().__init__()
        self.blocks = nn.ModuleList(
            DecoderBlock(dim, heads, source_dim=source_dim, **options) for _ in range(layers)
        )
        self.relative = relative
        self.norm = _final_norm(dim, options) if final_norm else None

    def forward(
        self,
        x: Float[Tensor, "*batch time dim"],
        memory: Float[Tensor, "*batch key source_dim"] | Sequence[KeysValues],
        *,
        mask: Mask | Bool[Tensor, "... _ _"] | None = None,
        memory_mask: Mask | Bool[Tensor, "... _ _"] | None = None,
        bias: Bias | Float[Tensor, "... _ _"] | None = None,
        positions: Int[Tensor, "*_ time"] | None = None,
        offset: int = 0,
        cache: CacheUpdate | None = None,
    ) -> Float[Tensor, "*batch time dim"]:
        bias = _add_relative(bias, self.relative)
        memories = [memory] * len(self.blocks) if isinstance(memory, Tensor) else memory
        if len(memories) != len(self.blocks):
            raise ShapeError(
                f"memory: needs keys and values for {len(self.blocks)} layers, "
                f"got {len(memories)}; try project_memory"
            )
        for block, block_memory in zip(self.blocks, memories, strict=True):
            x = block(
                x,
                block_memory,
                mask=mask,
                memory_mask=memory_mask,
                bias=bias,
                positions=positions,
                offset=offset,
                cache=cache,
            )
        return x if self.norm is None else self.norm(x)

    def project_memory(self, memory: Float[Tensor, "*batch key source_dim"]) -> list[KeysValues]:
        """The keys and values of the memory for each layer, to be computed once and reused.

        k_l = memory W_k,l,   v_l = memory W_v,l

        >>> [k.shape for k, _ in Decoder(1, 8, 2).project_memory(torch.randn(1, 5, 8))]
        [torch.Size([1, 2, 5, 4])]
        """
        blocks = cast(Iterable[DecoderBlock], self.blocks)
        return [block.cross_attention.project_kv(memory) for block in blocks]


def _final_norm(dim: int, options: BlockOptions) -> Norm:
    return Norm(
        dim,
        options.get("norm", "layer"),
        eps=options.get("eps", 1e-5),
        bias=options.get("bias", True),
    )


def _add_relative(
    bias: Bias | Tensor | None, relative: RelativeBias | None
) -> Bias | Tensor | None:
    if relative is None:
        return bias
    if isinstance(bias, Tensor):
        raise ShapeError(
            "bias: needs a Bias beside relative, got a Tensor; try biases.DenseBias(bias)"
        )
    return relative() if bias is None else relative() + bias
