"""Models of Hugging Face folders that read a picture with a text."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn

from regard.data import open_image
from regard.errors import LookError, ShapeError, library_errors
from regard.files import parse_json
from regard.inspection import Sight, Site, look
from regard.inspection.sites.patches import TOWER
from regard.models.hub.bounds import check_processor, data_copy

MAX_SIDE = 448  # pixels of the picture that is shown, where the model's own has another form
MAX_TOKENS = 1 << 14  # of a text with its picture


class PictureReading(NamedTuple):
    """What a model did with a picture and a text."""

    sight: Sight
    tokens: list[str]
    pixels: Float[Tensor, "channel height width"]  # from 0 to 1, as the model sees them
    next_tokens: list[tuple[str, float]]  # the most probable ones after the text

    @property
    def sites(self) -> list[Site]:
        """The attentions of the language model, which know where the patches are."""
        return [x for x in self.sight if x.patches and not TOWER.search(x.path)]


class ImageTextModel(NamedTuple):
    """A model and its processor, which makes its inputs from a picture and a text."""

    model: nn.Module
    processor: Any

    @torch.no_grad()
    def read(self, path: str | Path, text: str) -> PictureReading:
        """Record the attention on a picture and a text after it."""
        page, tokenizer = open_image(path).convert("RGB"), self.processor.tokenizer
        with library_errors("text", "a processor that takes it with one picture"):
            given = self.processor(text=self._prompt(text), images=page, return_tensors="pt")
        if (count := given["input_ids"].shape[1]) > MAX_TOKENS:
            got = f"{count} of this picture and text"
            raise ShapeError(f"text: needs at most {MAX_TOKENS} tokens, got {got}")
        given = given.to(next(self.model.parameters()).device)
        needs = "what its processor makes of a picture and a text"
        with library_errors("model", needs), look(self.model, tokens=tokenizer) as sight:
            logits = self.model(**given).logits[0, -1].float()
        best = logits.softmax(-1).topk(min(8, len(logits)))
        names = tokenizer.convert_ids_to_tokens(best.indices.tolist())
        shares = [(f"{x}", p) for x, p in zip(names, best.values.tolist(), strict=True)]
        tokens = tokenizer.convert_ids_to_tokens(given["input_ids"][0].tolist())
        reading = PictureReading(sight, tokens, self._shown(page, given), shares)
        if not reading.sites:
            kind = type(self.model).__name__
            raise LookError(f"model: needs attention over patches, got none recorded in {kind}")
        return reading

    def _prompt(self, text: str) -> str:
        """The text with the place of the picture before it, where it has none."""
        names = ("boi_token", "image_token")  # Gemma 3's processor writes its own frame
        token = next((x for name in names if (x := getattr(self.processor, name, None))), None)
        if token is None:
            kind = type(self.processor).__name__
            raise LookError(f"model: needs a processor with a token for a picture, got {kind}")
        start, end = (getattr(self.processor, f"vision_{x}_token", "") for x in ("start", "end"))
        return text if token in text else f"{start}{token}{end}\n{text}"

    def _shown(self, page: Image.Image, given: Any) -> Tensor:
        """The pixels that the model gets, or of packed patches the picture itself."""
        x, options = given.get("pixel_values"), self.processor.image_processor
        if isinstance(x, Tensor) and x.ndim in (4, 5):
            x = x.flatten(0, -4)[0].float().cpu()  # the first of several crops
            mean, std = (
                torch.tensor(values)[:, None, None] if values else default
                for values, default in ((options.image_mean, 0.0), (options.image_std, 1.0))
            )
            return (x * std + mean).clamp(0, 1)
        page.thumbnail((MAX_SIDE, MAX_SIDE))
        return torch.from_numpy(np.array(page)).float().permute(2, 0, 1) / 255


def load_image_text_model(folder: Path, model: nn.Module) -> ImageTextModel:
    """The model with the processor of its folder; nothing is downloaded, no code is run."""
    from transformers import AutoProcessor

    with library_errors(folder, "a processor that transformers loads"), data_copy(folder) as copy:
        for file in ("preprocessor_config.json", "processor_config.json"):
            if (folder / file).is_file():
                check_processor(parse_json((folder / file).read_text("utf-8")), f"{folder / file}")
        processor: Any = AutoProcessor.from_pretrained(
            copy, local_files_only=True, trust_remote_code=False
        )
        if not all(hasattr(processor, x) for x in ("tokenizer", "image_processor")):
            raise TypeError(f"{type(processor).__name__} reads no pictures with text")
    return ImageTextModel(model, processor)
