"""What a transformers model is called with to be counted: tensors of shapes alone."""

from typing import Any

import torch
from torch import Tensor


def input_size(model: Any) -> tuple[str, int | None]:
    """What `source` counts for a model, as text with {}, and its default."""
    name = getattr(model, "main_input_name", "input_ids")
    if name == "pixel_values":
        size = getattr(_main_config(model), "image_size", None) or 224
        return "side {}", size if isinstance(size, int) else size[0]
    if name == "input_features":  # Whisper takes 30 seconds, no less
        positions = getattr(model.config, "max_source_positions", None)
        return "frames {}", None if positions is None else 2 * positions
    return ("samples {}", 16_000) if name == "input_values" else ("n = {}", None)


def _main_config(model: Any) -> Any:
    return getattr(model.config, "vision_config", None) or model.config


def meta_inputs(model: Any, source: int, target: int, batch: int) -> dict[str, Tensor]:
    """Inputs of the model on the meta device."""
    name, config = model.main_input_name, _main_config(model)
    if name == "pixel_values":
        shape = (batch, getattr(config, "num_channels", 3), source, source)
    elif name == "input_features":
        shape = (batch, getattr(config, "num_mel_bins", 80), source)
    else:
        shape = (batch, source)
    dtype = torch.long if name == "input_ids" else model.dtype
    inputs = {name: torch.zeros(shape, dtype=dtype, device="meta")}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.zeros(batch, target, dtype=torch.long, device="meta")
    return inputs
