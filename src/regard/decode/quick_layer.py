"""One decoder block on a CPU, a token at a time, with nothing between the products of matrices."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.nn import DecoderBlock, Norm, Residual
from regard.nn.feedforward import ACTIVATIONS
from regard.nn.int8 import Int8Linear, Int8Product
from regard.ops.positions import frequencies
from regard.ops.products import Change, quick_product

AFTER = 2  # steps with as many rows before weights are put into the order that is quickest for them


class Linear:
    """x Wᵀ + b, by the kernel, and weights in the order, that are quickest for so many rows."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        self.weight, self.bias = weight.detach(), bias
        self.rows = self.count = 0
        self.quick: Change | None = None

    def __call__(self, x: Tensor) -> Tensor:
        if len(x) != self.rows:
            self.rows, self.count, self.quick = len(x), 0, None
        self.count += 1
        if self.count == AFTER:
            self.quick = quick_product(self.weight, self.bias, self.rows)
        return F.linear(x, self.weight, self.bias) if self.quick is None else self.quick(x)


Product = Linear | Int8Product


def product(weight: Tensor, bias: Tensor | None, *, whole: bool) -> Product:
    """What multiplies by a weight: in float, or by whole numbers."""
    # to add zeros to as many numbers as a vocabulary has takes longer than to look at them
    bias = None if bias is None or not bias.any() else bias.detach()
    return Int8Product(weight, bias) if whole else Linear(weight, bias)


def joined(*parts: nn.Linear) -> Product:
    """Several maps of one input as one product."""
    whole, biases = isinstance(parts[0], Int8Linear), [part.bias for part in parts]
    bias = None if biases[0] is None else torch.cat([b.detach() for b in biases])
    return product(torch.cat([part.weight.detach() for part in parts]), bias, whole=whole)


class Layer:
    """One decoder block: queries, keys and values of a token by one product.

    What it keeps of a sequence is one tensor, (batch, 2 · head, time · each, feat), the heads of
    keys first, then those of values: one copy a step.
    """

    def __init__(self, block: DecoderBlock):
        own, across, think = block.self_attention, block.cross_attention, block.feed_forward
        self.own, self.across = own, across
        self.heads, self.key_heads = own.heads, own.key_heads
        self.feat = own.to_q.out_features // own.heads
        self.to_qkv = joined(own.to_q, own.to_k, own.to_v)
        self.to_out, self.to_q, self.to_across = map(
            joined, (own.to_out, across.to_q, across.to_out)
        )
        self.hidden, self.narrow = map(joined, (think.to_hidden, think.to_out))
        self.gate = None if think.to_gate is None else joined(think.to_gate)
        self.activation = F.relu_ if think.activation == "relu" else ACTIVATIONS[think.activation]
        residuals = (block.self_residual, block.cross_residual, block.feed_forward_residual)
        self.residuals = [_around(residual) for residual in residuals]

    def look_back(
        self, x: Tensor, kept: Tensor, time: int, each: int, added: Tensor | None, turns: "Turns"
    ) -> Tensor:
        """What the tokens so far say to the newest, whose keys and values join those kept."""
        heads, end = self.heads, time * each
        before, after = self.residuals[0]
        y = self.to_qkv(before(x)).view(-1, each, heads + 2 * self.key_heads, self.feat)
        if turns is not None:
            turns(y[:, :, : heads + self.key_heads])
        y = y.transpose(1, 2)
        kept[:, :, end - each : end] = y[:, heads:]
        k, v = kept[:, : self.key_heads, :end], kept[:, self.key_heads :, :end]
        return after(x, self.to_out(self._attend(y[:, :heads], k, v, added, self.own.scale)))

    def look_across(self, x: Tensor, k: Tensor, v: Tensor, each: int, added: Tensor | None):
        """What the source says."""
        before, after = self.residuals[1]
        q = self.to_q(before(x)).view(-1, each, self.heads, self.feat).transpose(1, 2)
        return after(x, self.to_across(self._attend(q, k, v, added, self.across.scale)))

    def think(self, x: Tensor) -> Tensor:
        """What a token makes of it alone."""
        before, after = self.residuals[2]
        y = before(x)
        h = self.hidden(y)
        h = self.activation(h) if self.gate is None else self.activation(self.gate(y)).mul_(h)
        return after(x, self.narrow(h))

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, scale: float | None
    ) -> Tensor:
        grouped = self.heads != self.key_heads
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=added, scale=scale, enable_gqa=grouped
        )
        return y.transpose(1, 2).reshape(-1, self.heads * self.feat)


Turns = Callable[[Tensor], None] | None


def turning(layer: Layer, place: int) -> Turns:
    """What turns queries and keys of one place where they are, made once for all layers."""
    base, halves = layer.own.rotary, layer.own.halves
    if base is None:
        return None
    angles = place * frequencies(layer.feat, base)
    cos, sin = angles.cos().float(), angles.sin().float()
    turns = torch.complex(cos, sin)

    def by_halves(x: Tensor) -> None:
        a, b = x.unflatten(-1, (2, -1)).unbind(-2)
        x.copy_(torch.cat([a * cos - b * sin, a * sin + b * cos], -1))

    def by_pairs(x: Tensor) -> None:
        torch.view_as_complex(x.unflatten(-1, (-1, 2))).mul_(turns)

    return by_halves if halves else by_pairs


def _around(residual: Residual) -> tuple[Change, Callable[[Tensor, Tensor], Tensor]]:
    """What comes before a sublayer, and what joins its finding to x."""
    norm = normed(residual.norm)
    before, after = (norm, _same) if residual.norm_first else (_same, norm)
    if residual.skip:
        return before, lambda x, found: after(found.add_(x))
    return before, lambda x, found: after(found)


def normed(layer: Norm | None) -> Change:
    """A norm as a function, without its module."""
    if layer is None or layer.gain is None:
        return _same
    shape, gain, bias, eps = layer.gain.shape, layer.gain, layer.bias, layer.eps
    if layer.kind == "layer":
        return lambda x: torch.layer_norm(x, shape, gain, bias, eps)
    return lambda x: torch.rms_norm(x, shape, gain, eps)


def _same(x: Tensor) -> Tensor:
    return x
