"""int8 for CPUs: linear layers with quantised weights and inputs, and models quantised by them."""

from copy import deepcopy
from functools import cache
from typing import Any

import torch
from jaxtyping import Float, Int8
from torch import Tensor, nn

from regard.errors import BackendError
from regard.nn.layers import Readout

INT8_MAX = 127
MIN_SCALE = 1e-30  # avoids division by zero for a row of zeros
FEW_ROWS = 16  # up to here fewer operations matter more than fast ones
SCALE_SUFFIX = ".scale"  # of the name of a weight's scales in a file


def quantize_int8(
    weight: Float[Tensor, "rows ..."],
) -> tuple[Int8[Tensor, "rows ..."], Float[Tensor, " rows"]]:
    """Quantise a weight to int8, -127 … 127, with one scale per row.

    quantized = round(weight / scale),   scale = max |row| / 127, its last bits rounded up

    Quantising a dequantised weight returns the same numbers, bit for bit.

    >>> quantize_int8(torch.tensor([[127.0, -50.4], [0.5, 0.1]]))
    (tensor([[127, -50],
            [127,  25]], dtype=torch.int8), tensor([1.0000, 0.0039]))
    """
    flat = weight.detach().float().flatten(1)
    scale = flat.abs().amax(1).clamp(min=MIN_SCALE) / INT8_MAX
    # 16 bits suffice and leave room for a factor of 127, so that rounding twice is rounding once
    scale = scale.view(torch.int32).add(0xFF).bitwise_and(~0xFF).view(torch.float32)
    quantized = (flat / scale[:, None]).round().to(torch.int8)
    return quantized.view(weight.shape), scale


def dequantize_int8(
    quantized: Int8[Tensor, "rows ..."], scale: Float[Tensor, " rows"]
) -> Float[Tensor, "rows ..."]:
    """The weight of quantised numbers: scale · quantized, row by row.

    >>> dequantize_int8(torch.tensor([[2, -4]], dtype=torch.int8), torch.tensor([0.5]))
    tensor([[ 1., -2.]])
    """
    return quantized.float() * scale.view(-1, *[1] * (quantized.ndim - 1))


class PackedInt8Linear:
    """x Wᵀ + b with int8 weights and inputs quantised per row, on a CPU.

    y_i = s_i scale ⊙ (round(x_i / s_i) quantizedᵀ) + b,   s_i = max |x_i| / steps

    A row's scale does not depend on the rest of the batch. `steps` is 127, or 63 where the kernel
    adds pairs of products in 16 bits, which saturate.

    >>> product = PackedInt8Linear(torch.eye(2), torch.tensor([10.0, 20.0]))
    >>> product(torch.tensor([[1.0, -1.0], [0.0, 0.0]])).round()
    tensor([[11., 19.],
            [10., 20.]])
    """

    def __init__(self, weight: Float[Tensor, "rows dim"], bias: Float[Tensor, " rows"] | None):
        quantized, scale = quantize_int8(weight)
        self.steps = _input_steps()
        # the kernel takes unsigned inputs, 1 … 2 · steps + 1, with this zero point
        self.input_zero = self.steps + 1
        self.half = torch.tensor(self.input_zero + 0.5)
        self.packed: Any = torch.ops.onednn.qlinear_prepack(quantized, None)
        self.scale, self.zero = scale / self.steps, torch.zeros(len(quantized), dtype=torch.int32)
        self.bias = None if bias is None else bias.detach()

    def __call__(self, x: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows out"]:
        if len(x) == 1:  # the kernel itself applies one scale, and the bias
            largest = float(torch.linalg.vector_norm(x, torch.inf)) or 1.0
            # truncation after adding one half rounds
            quantized = torch.add(self.half, x, alpha=self.steps / largest).to(torch.uint8)
            return self._multiply(quantized, largest, self.bias)
        if len(x) <= FEW_ROWS:
            largest = torch.linalg.vector_norm(x, torch.inf, -1, True).clamp_(min=MIN_SCALE)
            quantized = torch.addcdiv(self.half, x, largest, value=self.steps)
        else:
            largest = x.abs().amax(-1, keepdim=True).clamp_(min=MIN_SCALE)
            quantized = (x * (self.steps / largest)).add_(self.half)
        y = self._multiply(quantized.to(torch.uint8), 1.0, None).mul_(largest)
        return y if self.bias is None else y.add_(self.bias)

    def _multiply(self, quantized: Tensor, scale: float, bias: Tensor | None) -> Tensor:
        return _qlinear(quantized, scale, self.input_zero, self.packed, self.scale, self.zero, bias)


def _qlinear(
    x: Tensor, scale: float, zero: int, packed: Any, scales: Tensor, zeros: Tensor,
    bias: Tensor | None,
) -> Tensor:  # fmt: skip
    return torch.ops.onednn.qlinear_pointwise(
        x, scale, zero, packed, scales, zeros, bias, 1.0, 0, torch.float32, "none", [], ""
    )


class _PackedCache:
    """A packed layer, created on first use and again when its weights change."""

    def __init__(self) -> None:
        self.versions: Any = None
        self.layer: PackedInt8Linear | None = None

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        versions = [(x.data_ptr(), x._version) for x in (weight, bias) if x is not None]
        if self.layer is None or versions != self.versions:
            self.layer, self.versions = PackedInt8Linear(weight, bias), versions
        return self.layer(x.reshape(-1, x.shape[-1])).view(*x.shape[:-1], -1)

    def __deepcopy__(self, memo: dict) -> "_PackedCache":
        return _PackedCache()  # the copy has other weights


class Int8Linear(nn.Linear):
    """Linear layer with int8 weights, computed in int8 on a CPU.

    On another device, or where a gradient is needed, it computes in float with dequantised weights.

    >>> layer = Int8Linear.from_linear(torch.nn.Linear(3, 2))
    >>> layer(torch.zeros(1, 4, 3)).shape
    torch.Size([1, 4, 2])
    """

    packed: _PackedCache

    @classmethod
    def from_linear(cls, layer: nn.Linear) -> "Int8Linear":
        """The same layer with quantised weights."""
        result = cls(layer.in_features, layer.out_features, bias=False, device="meta")
        result.weight = nn.Parameter(dequantize_int8(*quantize_int8(layer.weight)))
        result.bias, result.packed = layer.bias, _PackedCache()
        return result.train(layer.training)

    def forward(self, input: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch out"]:  # noqa: A002
        if not supports_int8(input):
            return super().forward(input)
        return self.packed(input, self.weight, self.bias)


class Int8Readout(Readout):
    """`Readout` in int8, under the conditions of `Int8Linear`.

    >>> readout = Int8Readout.from_readout(Readout(2, 3, tied=True))
    >>> with torch.no_grad():
    ...     readout(torch.tensor([[1.0, 2.0]]), torch.eye(3)[:, :2]).round()
    tensor([[1., 2., 0.]])
    """

    packed: _PackedCache

    @classmethod
    def from_readout(cls, readout: Readout) -> "Int8Readout":
        """The same readout with quantised weights, unless they are tied."""
        result = cls(1, 1, tied=True, scale=readout.scale, softcap=readout.softcap)
        if readout.weight is not None:
            result.weight = nn.Parameter(dequantize_int8(*quantize_int8(readout.weight)))
        result.bias, result.packed = readout.bias, _PackedCache()
        return result.train(readout.training)

    def multiply(self, x: Tensor, weight: Tensor) -> Tensor:
        return self.packed(x, weight) if supports_int8(x) else super().multiply(x, weight)


def supports_int8(x: Tensor) -> bool:
    """Whether the int8 kernel takes this input: float32 on a CPU, gradients disabled."""
    is_plain = x.device.type == "cpu" and x.dtype == torch.float32 and x.numel() > 0
    return is_plain and not torch.is_grad_enabled()


@cache
def _input_steps() -> int:
    """Quantisation steps of the input on each side of zero: 127, or 63 if the kernel saturates.

    Without VNNI oneDNN adds pairs of u8 · s8 products in int16, where 2 · 255 · 127 overflows and
    2 · 127 · 127 does not. The kernel itself is tested: `ONEDNN_MAX_CPU_ISA` can disable VNNI, and
    torch reports only AVX512-VNNI, though AVX-VNNI suffices.
    """
    return INT8_MAX if all(_is_exact(*shape) for shape in ((1, 2, 1), (17, 64, 64))) else 63


def _is_exact(rows: int, dim: int, out: int) -> bool:
    """Whether the largest inputs and weights of this shape give their exact product."""
    x = torch.full((rows, dim), 255, dtype=torch.uint8)
    quantized = torch.full((out, dim), INT8_MAX, dtype=torch.int8)
    packed = torch.ops.onednn.qlinear_prepack(quantized, None)
    ones, zeros = torch.ones(out, dtype=torch.float32), torch.zeros(out, dtype=torch.int32)
    y = _qlinear(x, 1.0, 0, packed, ones, zeros, None)
    return bool((y == 255 * INT8_MAX * dim).all())


def quantize(model: nn.Module) -> nn.Module:
    """An int8 copy of a model, in evaluation mode: weights with two or more axes are quantized.

    w ≈ scale · q,   q an integer from -127 to 127, one scale per row

    Linear layers and the readout also quantize their inputs, on a CPU and without gradients;
    convolutions and recurrent cells compute in float with dequantized weights.

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=9)).eval()
    >>> tokens = torch.tensor([[1, 2, 3]])
    >>> with torch.no_grad():
    ...     bool((quantize(model)(tokens) - model(tokens)).abs().max() < 0.1)
    True
    """
    try:
        PackedInt8Linear(torch.eye(2), None)(torch.eye(2))
    except (AttributeError, RuntimeError, NotImplementedError) as error:
        reason = f"this torch has no int8 matrix product ({str(error).splitlines()[0]})"
        raise BackendError(f"backend: int8 cannot run here, {reason}; try float32") from error
    quantized = deepcopy(model).float().eval()
    for weight in quantized.state_dict().values():
        if _is_weight(weight):
            weight.copy_(dequantize_int8(*quantize_int8(weight)))
    return swap_int8_modules(quantized)


def is_quantized(model: nn.Module) -> bool:
    """Whether a model has int8 layers.

    >>> is_quantized(rg.models.LanguageModel(rg.models.language_tiny(vocab=9)))
    False
    """
    return any(isinstance(module, Int8Linear | Int8Readout) for module in model.modules())


def swap_int8_modules(model: nn.Module) -> nn.Module:
    """Replace linear layers and readouts by their int8 versions, in place; returns the model."""
    for module in list(model.modules()):
        for name, part in list(module.named_children()):
            if type(part) is nn.Linear:
                setattr(module, name, Int8Linear.from_linear(part))
            elif type(part) is Readout:
                setattr(module, name, Int8Readout.from_readout(part))
    return model


def pack_int8(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a file: int8 weights, each with its scales under another name."""
    packed = {}
    for name, x in tensors.items():
        if _is_weight(x):
            packed[name], packed[name + SCALE_SUFFIX] = quantize_int8(x)
        else:
            packed[name] = x
    return packed


def unpack_int8(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `pack_int8`: dequantized weights."""
    return {
        name: dequantize_int8(x, tensors[name + SCALE_SUFFIX])
        if name + SCALE_SUFFIX in tensors
        else x
        for name, x in tensors.items()
        if not name.endswith(SCALE_SUFFIX)
    }


def _is_weight(x: Tensor) -> bool:
    return x.ndim > 1 and x.is_floating_point()
