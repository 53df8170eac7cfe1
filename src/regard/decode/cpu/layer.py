"""One decoder block on a CPU, one token per step, without module overhead."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.nn import DecoderBlock, Norm, Residual
from regard.nn.feed_forward import ACTIVATIONS
from regard.nn.int8 import Int8Linear, PackedInt8Linear
from regard.ops.packed_linear import LinearFunction, packed_linear
from regard.ops.positions import frequencies

REPACK_AFTER = 2  # steps with the same number of rows before weights are packed for it


class PackedLinear:
    """x Wᵀ + b, with weights packed for the number of rows."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        self.weight, self.bias = weight.detach(), bias
        self.rows = self.count = 0
        self.packed_matmul: LinearFunction | None = None

    def __call__(self, x: Tensor) -> Tensor:
        if len(x) != self.rows:
            self.rows, self.count, self.packed_matmul = len(x), 0, None
        self.count += 1
        if self.count == REPACK_AFTER:
            self.packed_matmul = packed_linear(self.weight, self.bias, self.rows)
        if self.packed_matmul is None:
            return F.linear(x, self.weight, self.bias)
        return self.packed_matmul(x)


Matmul = PackedLinear | PackedInt8Linear


def make_matmul(weight: Tensor, bias: Tensor | None, *, int8: bool) -> Matmul:
    """A matrix product with a fixed weight, in float or int8."""
    # adding zeros to a whole vocabulary takes longer than checking for them
    bias = None if bias is None or not bias.any() else bias.detach()
    return PackedInt8Linear(weight, bias) if int8 else PackedLinear(weight, bias)


def fuse_linears(*parts: nn.Linear) -> Matmul:
    """Several linear layers of one input as one product."""
    int8, biases = isinstance(parts[0], Int8Linear), [part.bias for part in parts]
    bias = None if biases[0] is None else torch.cat([b.detach() for b in biases])
    return make_matmul(torch.cat([part.weight.detach() for part in parts]), bias, int8=int8)


class CpuDecoderLayer:
    """One decoder block; q, k and v come from one product, k and v go to the cache in one copy."""

    def __init__(self, block: DecoderBlock):
        own, across, think = block.self_attention, block.cross_attention, block.feed_forward
        self.self_module, self.cross_module = own, across
        self.heads, self.kv_heads = own.heads, own.kv_heads
        self.head_dim = own.to_q.out_features // own.heads
        self.to_qkv = fuse_linears(own.to_q, own.to_k, own.to_v)
        self.to_out, self.to_cross_q, self.to_cross_out = map(
            fuse_linears, (own.to_out, across.to_q, across.to_out)
        )
        self.ffn_up, self.ffn_down = map(fuse_linears, (think.to_hidden, think.to_out))
        self.ffn_gate = None if think.to_gate is None else fuse_linears(think.to_gate)
        self.activation = F.relu_ if think.activation == "relu" else ACTIVATIONS[think.activation]
        residuals = (block.self_residual, block.cross_residual, block.feed_forward_residual)
        self.residuals = [_around(residual) for residual in residuals]

    def self_attention(
        self,
        x: Tensor,
        cache: Tensor,
        time: int,
        rows_per_source: int,
        attn_bias: Tensor | None,
        rotary: "Rotary",
    ) -> Tensor:
        """Self-attention sublayer of the new tokens, whose keys and values are added to `cache`."""
        heads, kv_heads, end = self.heads, self.kv_heads, time * rows_per_source
        before, after = self.residuals[0]
        y = self.to_qkv(before(x)).view(-1, rows_per_source, heads + 2 * kv_heads, self.head_dim)
        if rotary is not None:
            rotary(y[:, :, : heads + kv_heads])
        y = y.transpose(1, 2)
        cache[:, :, end - rows_per_source : end] = y[:, heads:]
        k, v = cache[:, :kv_heads, :end], cache[:, kv_heads:, :end]
        y = self._attend(y[:, :heads], k, v, attn_bias, self.self_module.scale)
        return after(x, self.to_out(y))

    def cross_attention(
        self, x: Tensor, k: Tensor, v: Tensor, rows_per_source: int, attn_bias: Tensor | None
    ):
        """Cross-attention sublayer."""
        before, after = self.residuals[1]
        q = self.to_cross_q(before(x)).view(-1, rows_per_source, self.heads, self.head_dim)
        y = self._attend(q.transpose(1, 2), k, v, attn_bias, self.cross_module.scale)
        return after(x, self.to_cross_out(y))

    def feed_forward(self, x: Tensor) -> Tensor:
        """Feed-forward sublayer."""
        before, after = self.residuals[2]
        y = before(x)
        h = self.ffn_up(y)
        if self.ffn_gate is None:
            h = self.activation(h)
        else:
            h = self.activation(self.ffn_gate(y)).mul_(h)
        return after(x, self.ffn_down(h))

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, scale: float | None
    ) -> Tensor:
        grouped = self.heads != self.kv_heads
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=added, scale=scale, enable_gqa=grouped
        )
        return y.transpose(1, 2).reshape(-1, self.heads * self.head_dim)


Rotary = Callable[[Tensor], None] | None


def make_rotary(layer: CpuDecoderLayer, position: int) -> Rotary:
    """In-place rotary embedding at one position, shared by all layers; None without."""
    base, halves = layer.self_module.rope_theta, layer.self_module.rotate_half
    if base is None:
        return None
    angles = position * frequencies(layer.head_dim, base)
    cos, sin = angles.cos().float(), angles.sin().float()
    turns = torch.complex(cos, sin)

    def by_halves(x: Tensor) -> None:
        a, b = x.unflatten(-1, (2, -1)).unbind(-2)
        x.copy_(torch.cat([a * cos - b * sin, a * sin + b * cos], -1))

    def by_pairs(x: Tensor) -> None:
        torch.view_as_complex(x.unflatten(-1, (-1, 2))).mul_(turns)

    return by_halves if halves else by_pairs


def _around(residual: Residual) -> tuple[LinearFunction, Callable[[Tensor, Tensor], Tensor]]:
    """Functions before a sublayer, and after it to combine its output with x."""
    norm = norm_function(residual.norm)
    before, after = (norm, _identity) if residual.norm_first else (_identity, norm)
    if residual.skip:
        return before, lambda x, y: after(y.add_(x))
    return before, lambda x, y: after(y)


def norm_function(layer: Norm | None) -> LinearFunction:
    """A norm as a function."""
    if layer is None or layer.gain is None:
        return _identity
    shape, gain, bias, eps = layer.gain.shape, layer.gain, layer.bias, layer.eps
    if layer.kind == "layer":
        return lambda x: torch.layer_norm(x, shape, gain, bias, eps)
    return lambda x: torch.rms_norm(x, shape, gain, eps)


def _identity(x: Tensor) -> Tensor:
    return x
