"""Linear maps by whole numbers: weights of one byte each, and inputs rounded row by row."""

from functools import cache
from typing import Any

import torch
from jaxtyping import Float, Int8
from torch import Tensor, nn

from regard.nn.readout import Readout

INT8_MAX = 127  # of a weight, in steps of its row
MIN_SCALE = 1e-30  # a row of zeros has no largest number to divide by
FEW_ROWS = 16  # rows for which fewer passes count more than quick ones


def quantize_int8(
    weight: Float[Tensor, "rows ..."],
) -> tuple[Int8[Tensor, "rows ..."], Float[Tensor, " rows"]]:
    """A weight in whole numbers from -127 to 127, and how much one of them is worth in each row.

    whole = round(weight / scale),   scale = max |row| / 127, its last bits rounded up

    A weight that is scale · whole gives the same numbers again, to the last bit.

    >>> quantize_int8(torch.tensor([[127.0, -50.4], [0.5, 0.1]]))
    (tensor([[127, -50],
            [127,  25]], dtype=torch.int8), tensor([1.0000, 0.0039]))
    """
    flat = weight.detach().float().flatten(1)
    scale = flat.abs().amax(1).clamp(min=MIN_SCALE) / INT8_MAX
    # 16 bits are enough, and leave room for 127 times that: so rounding twice is rounding once
    scale = scale.view(torch.int32).add(0xFF).bitwise_and(~0xFF).view(torch.float32)
    whole = (flat / scale[:, None]).round().to(torch.int8)
    return whole.view(weight.shape), scale


def dequantize_int8(
    quantized: Int8[Tensor, "rows ..."], scale: Float[Tensor, " rows"]
) -> Float[Tensor, "rows ..."]:
    """The weight that whole numbers stand for: scale · whole, row by row.

    >>> dequantize_int8(torch.tensor([[2, -4]], dtype=torch.int8), torch.tensor([0.5]))
    tensor([[ 1., -2.]])
    """
    return quantized.float() * scale.view(-1, *[1] * (quantized.ndim - 1))


class PackedInt8Linear:
    """x Wᵀ + b with W in whole numbers and each row of x rounded to them too; on a CPU.

    y_i = s_i scale ⊙ (round(x_i / s_i) wholeᵀ) + b,   s_i = max |x_i| / steps

    A row is rounded by its own largest number, whatever else is in the batch. `steps` is 127, or
    63 where the kernel adds pairs of products in 16 bits, which saturate.

    >>> product = PackedInt8Linear(torch.eye(2), torch.tensor([10.0, 20.0]))
    >>> product(torch.tensor([[1.0, -1.0], [0.0, 0.0]])).round()
    tensor([[11., 19.],
            [10., 20.]])
    """

    def __init__(self, weight: Float[Tensor, "rows dim"], bias: Float[Tensor, " rows"] | None):
        whole, scale = quantize_int8(weight)
        self.steps = _input_steps()
        # the kernel takes unsigned inputs, 1 … 2 · steps + 1, with this zero point
        self.input_zero = self.steps + 1
        self.half = torch.tensor(self.input_zero + 0.5)
        self.packed: Any = torch.ops.onednn.qlinear_prepack(whole, None)
        self.scale, self.zero = scale / self.steps, torch.zeros(len(whole), dtype=torch.int32)
        self.bias = None if bias is None else bias.detach()

    def __call__(self, x: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows out"]:
        if len(x) == 1:  # one scale for all: the kernel itself can take it, and the bias
            largest = float(torch.linalg.vector_norm(x, torch.inf)) or 1.0
            # truncation after adding a half is rounding
            whole = torch.add(self.half, x, alpha=self.steps / largest).to(torch.uint8)
            return self._multiply(whole, largest, self.bias)
        whole, largests = self._rounded(x)
        y = self._multiply(whole, 1.0, None).mul_(largests)
        return y if self.bias is None else y.add_(self.bias)

    def _rounded(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Rows as unsigned integers, and the largest magnitude of each."""
        if len(x) <= FEW_ROWS:
            largest = torch.linalg.vector_norm(x, torch.inf, -1, True).clamp_(min=MIN_SCALE)
            whole = torch.addcdiv(self.half, x, largest, value=self.steps)
        else:
            largest = x.abs().amax(-1, keepdim=True).clamp_(min=MIN_SCALE)
            whole = (x * (self.steps / largest)).add_(self.half)
        return whole.to(torch.uint8), largest

    def _multiply(self, whole: Tensor, scale: float, bias: Tensor | None) -> Tensor:
        return _qlinear(whole, scale, self.input_zero, self.packed, self.scale, self.zero, bias)


def _qlinear(
    x: Tensor, scale: float, zero: int, packed: Any, scales: Tensor, zeros: Tensor,
    bias: Tensor | None,
) -> Tensor:  # fmt: skip
    return torch.ops.onednn.qlinear_pointwise(
        x, scale, zero, packed, scales, zeros, bias, 1.0, 0, torch.float32, "none", [], ""
    )


class _Kept:
    """A product that is made when first asked for, and anew when its weights have changed."""

    def __init__(self) -> None:
        self.marks: Any = None
        self.product: PackedInt8Linear | None = None

    def of(self, weight: Tensor, bias: Tensor | None) -> PackedInt8Linear:
        marks = [(x.data_ptr(), x._version) for x in (weight, bias) if x is not None]
        if self.product is None or marks != self.marks:
            self.product, self.marks = PackedInt8Linear(weight, bias), marks
        return self.product

    def __deepcopy__(self, memo: dict) -> "_Kept":
        return _Kept()  # what is packed belongs to the weights it was packed from


class Int8Linear(nn.Linear):
    """A linear map with weights that fit a byte each: x Wᵀ + b, on a CPU by whole numbers.

    On another device, or where a gradient is asked for, the same rounded weights in float.

    >>> layer = Int8Linear.from_linear(torch.nn.Linear(3, 2))
    >>> layer(torch.zeros(1, 4, 3)).shape
    torch.Size([1, 4, 2])
    """

    packed: _Kept

    @classmethod
    def from_linear(cls, layer: nn.Linear) -> "Int8Linear":
        """The same map, its weights rounded."""
        made = cls(layer.in_features, layer.out_features, bias=False, device="meta")
        made.weight = nn.Parameter(dequantize_int8(*quantize_int8(layer.weight)))
        made.bias, made.packed = layer.bias, _Kept()
        return made.train(layer.training)

    def forward(self, input: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch out"]:  # noqa: A002
        if not supports_int8(input):
            return super().forward(input)
        y = self.packed.of(self.weight, self.bias)(input.reshape(-1, input.shape[-1]))
        return y.view(*input.shape[:-1], -1)


class Int8Readout(Readout):
    """Scores over a vocabulary by whole numbers, where `Int8Linear` would use them.

    >>> readout = Int8Readout(2, 3, tied=True)
    >>> with torch.no_grad():
    ...     readout(torch.tensor([[1.0, 2.0]]), torch.eye(3)[:, :2]).round()
    tensor([[1., 2., 0.]])
    """

    def __init__(self, dim: int, vocab: int, **choices: Any):
        super().__init__(dim, vocab, **choices)
        self.packed = _Kept()

    @classmethod
    def from_readout(cls, readout: Readout) -> "Int8Readout":
        """The same readout, its weights rounded if they are its own."""
        made = cls(1, 1, tied=True, scale=readout.scale)
        if readout.weight is not None:
            made.weight = nn.Parameter(dequantize_int8(*quantize_int8(readout.weight)))
        made.bias = readout.bias
        return made.train(readout.training)

    def forward(
        self, x: Float[Tensor, "*batch dim"], tied_weight: Float[Tensor, "vocab dim"] | None = None
    ) -> Float[Tensor, "*batch vocab"]:
        weight = tied_weight if self.weight is None else self.weight
        if weight is None or not supports_int8(x):
            return super().forward(x, tied_weight)
        logits = self.packed.of(weight, None)(x.reshape(-1, x.shape[-1]))
        logits = logits.view(*x.shape[:-1], -1)
        logits = logits if self.scale == 1.0 else logits.mul_(self.scale)
        return logits if self.bias is None else logits.add_(self.bias)


def supports_int8(x: Tensor) -> bool:
    """Whether whole numbers can take this input: float32 on a CPU, and no gradient asked for.

    >>> supports_int8(torch.zeros(1, 2)), supports_int8(torch.zeros(1, 2, dtype=torch.float64))
    (False, False)
    """
    plain = x.device.type == "cpu" and x.dtype == torch.float32 and x.numel() > 0
    return plain and not torch.is_grad_enabled()


@cache
def _input_steps() -> int:
    """Steps that an input is rounded to on each side of zero: 127, or 63 if the kernel saturates.

    Without VNNI oneDNN adds pairs of u8 · s8 products in int16, where 2 · 255 · 127 overflows and
    2 · 127 · 127 does not. The kernel itself is asked, as `ONEDNN_MAX_CPU_ISA` can take VNNI away
    from a processor that has it, and torch knows of AVX512-VNNI alone, where AVX-VNNI will do.

    >>> _input_steps() in (63, 127)
    True
    """
    return INT8_MAX if all(_is_exact(*shape) for shape in ((1, 2, 1), (17, 64, 64))) else 63


def _is_exact(rows: int, dim: int, out: int) -> bool:
    """Whether the largest inputs and weights of this shape give their exact product."""
    x = torch.full((rows, dim), 255, dtype=torch.uint8)
    whole = torch.full((out, dim), INT8_MAX, dtype=torch.int8)
    packed = torch.ops.onednn.qlinear_prepack(whole, None)
    ones, zeros = torch.ones(out, dtype=torch.float32), torch.zeros(out, dtype=torch.int32)
    y = _qlinear(x, 1.0, 0, packed, ones, zeros, None)
    return bool((y == 255 * INT8_MAX * dim).all())
