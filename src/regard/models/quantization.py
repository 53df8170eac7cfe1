"""A trained model with weights of one byte each: a smaller file, and quicker steps on a CPU."""

from copy import deepcopy

import torch
from torch import Tensor, nn

from regard.errors import BackendError
from regard.nn import Readout
from regard.nn.int8 import Int8Linear, Int8Readout, PackedInt8Linear, dequantize_int8, quantize_int8

SCALE_SUFFIX = ".scale"  # what stands behind a weight's name in a file


def quantize(model: nn.Module) -> nn.Module:
    """A copy of a model in evaluation mode, every weight of two axes or more rounded to a byte.

    w ≈ scale · whole,   whole from -127 to 127, a scale for each row

    Linear maps and the readout then take whole numbers as their inputs too, on a CPU and without
    gradients; convolutions and recurrent cells reckon in float with their rounded weights.

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=9)).eval()
    >>> tokens = torch.tensor([[1, 2, 3]])
    >>> with torch.no_grad():
    ...     bool((quantize(model)(tokens) - model(tokens)).abs().max() < 0.1)
    True
    """
    if reason := _refusal():
        raise BackendError(f"form: int8 cannot run here, {reason}; try float32")
    made = deepcopy(model).float().eval()
    for weight in made.state_dict().values():
        if _is_weight(weight):
            weight.copy_(dequantize_int8(*quantize_int8(weight)))
    return swap_int8_modules(made)


def is_quantized(model: nn.Module) -> bool:
    """Whether a model's weights have one byte each.

    >>> is_quantized(rg.models.LanguageModel(rg.models.language_tiny(vocab=9)))
    False
    """
    return any(isinstance(module, Int8Linear | Int8Readout) for module in model.modules())


def swap_int8_modules(model: nn.Module) -> nn.Module:
    """The model itself, its linear maps and readouts changed to those of whole numbers."""
    for module in list(model.modules()):
        for name, part in list(module.named_children()):
            if type(part) is nn.Linear:
                setattr(module, name, Int8Linear.from_linear(part))
            elif type(part) is Readout:
                setattr(module, name, Int8Readout.from_readout(part))
    return model


def pack_int8(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights as they go into a file: whole numbers, and beside each its scales."""
    found = {}
    for name, x in tensors.items():
        if _is_weight(x):
            found[name], found[name + SCALE_SUFFIX] = quantize_int8(x)
        else:
            found[name] = x
    return found


def unpack_int8(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights as they come out of a file."""
    return {
        name: dequantize_int8(x, tensors[name + SCALE_SUFFIX])
        if name + SCALE_SUFFIX in tensors
        else x
        for name, x in tensors.items()
        if not name.endswith(SCALE_SUFFIX)
    }


def _is_weight(x: Tensor) -> bool:
    return x.ndim > 1 and x.is_floating_point()


def _refusal() -> str | None:
    try:
        PackedInt8Linear(torch.eye(2), None)(torch.eye(2))
    except (AttributeError, RuntimeError, NotImplementedError) as error:
        return f"this torch has no product of whole numbers ({str(error).splitlines()[0]})"
    return None
