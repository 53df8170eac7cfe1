"""Blocks on top of each other, with the relative bias they share and the norm at the end."""

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
    """Encoder blocks in a row; with a causal mask, the stack of a language model.

    x = block_L(… block_1(x) …), then a norm if `final_norm` (pre-LN stacks want one)

    `relative` makes the bias that all layers add to their scores.

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
        bias = _one_bias(bias, self.relative)
        masks = mask if isinstance(mask, list | tuple) else [mask] * len(self.blocks)
        for block, mask in zip(self.blocks, masks, strict=True):
            x = block(x, mask=mask, bias=bias, positions=positions, offset=offset, cache=cache)
        return x if self.norm is None else self.norm(x)


class Decoder(nn.Module):
    """Decoder blocks in a row, each looking back at one memory.

    x = block_L(… block_1(x, memory) …, memory), then a norm if `final_norm`

    >>> decoder, memory = Decoder(2, 8, 2), torch.randn(1, 5, 8)
    >>> once = decoder.project_memory(memory)  # for many calls: keys and values of every layer
    >>> x = torch.randn(1, 3, 8)
    >>> torch.equal(decoder(x, once), decoder(x, memory))
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
        bias = _one_bias(bias, self.relative)
        memories = [memory] * len(self.blocks) if isinstance(memory, Tensor) else memory
        if len(memories) != len(self.blocks):
            raise ShapeError(
                f"memory: needs keys and values for {len(self.blocks)} layers, "
                f"got {len(memories)}; try project_memory"
            )
        for block, read in zip(self.blocks, memories, strict=True):
            x = block(
                x,
                read,
                mask=mask,
                memory_mask=memory_mask,
                bias=bias,
                positions=positions,
                offset=offset,
                cache=cache,
            )
        return x if self.norm is None else self.norm(x)

    def project_memory(self, memory: Float[Tensor, "*batch key source_dim"]) -> list[KeysValues]:
        """The keys and values that each layer makes of the memory, to be made once and used often.

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


def _one_bias(bias: Bias | Tensor | None, relative: RelativeBias | None) -> Bias | Tensor | None:
    if relative is None:
        return bias
    if isinstance(bias, Tensor):
        raise ShapeError("bias: needs a Bias beside relative, got a Tensor; try biases.DenseBias(bias)")
    return relative() if bias is None else relative() + bias
