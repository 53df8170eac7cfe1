"""Vision models of Hugging Face folders: the model, how it reads a picture, and its classes."""

import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn

from regard.data import open_image
from regard.errors import FileError, library_errors
from regard.files import parse_json
from regard.inspection import Sight, look
from regard.runs.hub_model import TOKENIZER_FILES, load_hub_model

PROCESSOR_FILE = "preprocessor_config.json"
MAX_SIDE = 4096  # pixels of a model's picture
# whose patches are tokens; of CLIP and SigLIP the vision encoder
PATCH_MODELS = re.compile(r"(vit|deit|dinov2(_with_registers)?|(clip|siglip)(_vision_model)?)$")
OTHER_INPUT = re.compile(
    r"For(Audio|CTC|Depth|Image|Instance|Object|Semantic|Universal|Video|XVec)"
)


class ImageModel(NamedTuple):
    """A vision model and how it reads a picture."""

    model: nn.Module
    labels: tuple[str, ...]  # of its classes; none of an encoder alone
    processor: dict[str, Any]

    @property
    def config(self) -> Any:
        """That of the vision encoder."""
        return self.model.config

    def read(self, path: str | Path) -> Float[Tensor, "channel height width"]:
        """The part of a picture that the model sees, in its size, from 0 to 1."""
        page = open_image(path).convert("L" if self.config.num_channels == 1 else "RGB")
        with library_errors(PROCESSOR_FILE, "the sizes of a picture"):
            page = self._resize(page)
        pixels = torch.from_numpy(np.array(page)).float() / 255
        return pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1)

    def _resize(self, page: Image.Image) -> Image.Image:
        """The picture in the model's size: scaled to it, or its middle after scaling an edge."""
        options, patch, known = self.processor, self.config.patch_size, self.config.image_size
        scaled, crop = options.get("size") or {}, options.get("crop_size")
        if isinstance(scaled, int):  # of older releases
            scaled = {"shortest_edge": scaled} if crop else {"height": scaled, "width": scaled}
        crop = {"height": crop, "width": crop} if isinstance(crop, int) else crop
        size, edge = crop or scaled, scaled.get("shortest_edge")
        side = size.get("shortest_edge", known if isinstance(known, int) else min(known))
        width, height = (max(1, size.get(x, side) // patch) * patch for x in ("width", "height"))
        if max(width, height, edge or 1) > MAX_SIDE:
            raise FileError(f"{PROCESSOR_FILE}: needs sides of at most {MAX_SIDE}, got {options}")
        method = Image.Resampling(options.get("resample", Image.Resampling.BICUBIC))
        if not edge:
            return page.resize((width, height), method)
        ratio = max(page.size) / min(page.size)
        if edge * ratio > 8 * MAX_SIDE:
            raise FileError(f"image: needs sides that are nearly alike, got {page.size}")
        short = min(page.size)
        page = page.resize((edge * page.width // short, edge * page.height // short), method)
        left, top = (page.width - width) // 2, (page.height - height) // 2
        return page.crop((left, top, left + width, top + height))

    @torch.no_grad()
    def look(self, pixels: Float[Tensor, "channel height width"]) -> tuple[Sight, Tensor | None]:
        """The attentions on a picture, and the logits of a model with classes."""
        with library_errors("model", "a picture of its own size"), look(self.model) as sight:
            mean, std = (
                torch.tensor(self.processor.get(name) or [0.5])[:, None, None]
                for name in ("image_mean", "image_std")
            )
            x = ((pixels - mean) / std)[None].to(next(self.model.parameters()))
            out = self.model(pixel_values=x)
        return sight, out.logits[0].float() if self.labels else None


def hub_input(folder: Path, values: dict[str, Any]) -> tuple[str, str]:
    """What a Hugging Face folder reads, and why the explorer cannot show it, where it cannot."""
    kinds = values.get("architectures")
    kind = str(kinds[0]) if kinds and isinstance(kinds, list) else "model"
    if PATCH_MODELS.match(str(values.get("model_type"))):
        return "image", ""
    processor = _processor(folder)
    if "feature_extractor_type" in processor:
        return "sound", f"a {kind} reads sound; try rg.look(model) in Python with its own input"
    has_tokenizer = any((folder / name).is_file() for name in TOKENIZER_FILES)
    if OTHER_INPUT.search(kind) or (processor and not has_tokenizer):
        return "image", f"a {kind} is none of ViT, DINOv2, SigLIP and CLIP; try rg.look(model)"
    return "text", ""


def reads_pictures(folder: Path, values: dict[str, Any]) -> bool:
    """Whether a folder is that of a model of texts with pictures, with its processor."""
    has_processor = any((folder / x).is_file() for x in (PROCESSOR_FILE, "processor_config.json"))
    is_both = "vision_config" in values and {"image_token_id", "image_token_index"} & {*values}
    return has_processor and bool(is_both)


def load_image_model(folder: Path) -> ImageModel:
    """A vision model of a Hugging Face folder; of CLIP and SigLIP the vision encoder."""
    model = load_hub_model(folder)
    model = getattr(model, "vision_model", model)
    config: Any = model.config
    if not isinstance(config.patch_size, int):
        raise FileError(f"{folder}: needs square patches, got {config.patch_size}")
    has_classes = type(model).__name__.endswith("ForImageClassification")
    labels = [config.id2label[i] for i in range(config.num_labels)] if has_classes else ()
    return ImageModel(model, tuple(labels), _processor(folder))


def _processor(folder: Path) -> dict[str, Any]:
    file = folder / PROCESSOR_FILE
    if not file.is_file():
        return {}
    with library_errors(file, "JSON"):
        values = parse_json(file.read_text(encoding="utf-8"))
        return dict(values)
