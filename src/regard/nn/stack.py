"""Stacks of Transformer blocks, with a shared relative bias and a final norm."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Unpack, cast

from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.errors import ShapeError
from regard.nn.attention import KeysValues, TokenInputs
from regard.nn.block import POST_LN, BlockOptions, DecoderBlock, EncoderBlock
from regard.nn.norm import Norm
from regard.nn.relative_bias import RelativeBias
from regard.ops import Bias, Mask


class TransformerStack(nn.Module):
    """Base class: blocks of one type, the relative bias they share, and the final norm."""

    block_type: type[EncoderBlock | DecoderBlock]

    def __init__(
        self,
        layers: int,
        dim: int,
        heads: int,
        options: BlockOptions = POST_LN,
        *,
        final_norm: bool = False,
        relative: RelativeBias | None = None,
        **changes: Any,
    ):
        super().__init__()
        options = replace(options, **changes)
        self.blocks = nn.ModuleList(self.block_type(dim, heads, options) for _ in range(layers))
        self.relative, self.norm = relative, None
        if final_norm:
            self.norm = Norm(dim, options.norm, eps=options.eps, bias=options.bias)

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
        options: of every block.
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
