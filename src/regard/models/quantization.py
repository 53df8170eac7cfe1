"""Post-training int8 quantization: smaller files, and faster decoding on a CPU."""

from copy import deepcopy

import torch
from torch import Tensor, nn

from regard.errors import BackendError
from regard.nn import Readout
from regard.nn.int8 import Int8Linear, Int8Readout, PackedInt8Linear, dequantize_int8, quantize_int8

SCALE_SUFFIX = ".scale"  # of the name of a weight's scales in a file


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
