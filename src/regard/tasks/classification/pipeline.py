"""Classification of image files by the vision model of a run, with attention overlays."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.data import crop_to_ink, open_image, read_image
from regard.data.image.image_file import crop_to_multiple
from regard.errors import ConfigError, FileError
from regard.inspection import look
from regard.models import VisionTransformer
from regard.ops.maybe_none import MaybeNone
from regard.tasks.classification.evaluator import top_log_odds
from regard.tasks.classification.verb import Classify, ClassifyOptions
from regard.tasks.pipeline import Answer, JobInput, Pipeline, TrainedRun, require_verb
from regard.tasks.reporter import confidence_warning


class ClassPrediction(list[tuple[str, float]]):
    """The most probable classes of an image as (name, probability), best first.

    `confidence` is the calibrated probability that the first one is correct, lower for an image of
    none of the classes; None for a run without a calibration, which is never `unsure`.

    >>> prediction = ClassPrediction([("dog", 0.9), ("cat", 0.1)], confidence=0.2, threshold=0.5)
    >>> prediction[0], prediction.unsure
    (('dog', 0.9), True)
    """

    def __init__(
        self,
        classes: Iterable[tuple[str, float]] = (),
        *,
        confidence: float | MaybeNone = None,
        threshold: float = 0.0,
    ):
        super().__init__(classes)
        self.confidence, self.threshold = confidence, threshold

    @property
    def unsure(self) -> bool:
        """Whether the confidence is below the threshold chosen on held-out data."""
        return self.confidence is not None and self.confidence < self.threshold

    def warning(self, name: str | Path) -> str:
        """The low-confidence warning; empty if there is none."""
        if self.confidence is None or not self.unsure:
            return ""
        return confidence_warning(name, self.confidence, self.threshold, "the class may be wrong")


class ClassificationPipeline(Pipeline):
    """Classifies image files; one that cannot be read has a FileError in place of its classes.

    >>> (error,) = rg.load("glyphs", device="cpu").pipeline(top=3)(["none.png"])
    >>> type(error).__name__
    'FileError'
    """

    declares = Classify
    batch_size = 32

    def __init__(self, run: TrainedRun, options: ClassifyOptions | None = None, **values: Any):
        require_verb(run, "classify")
        super().__init__(run, options, **values)
        patch, size, overlay = patch_size(run), self.options.size, self.options.overlay
        if self.options.own_size and size is not None:
            raise ConfigError(f"size: needs to be unset with --own-size, got {size}")
        if size is not None and (size < patch or size % patch):
            raise ConfigError(f"size: needs a multiple of the patch, {patch}, got {size}")
        if overlay is not None:
            if not isinstance(run.model, VisionTransformer):
                kind = type(run.model).__name__
                raise ConfigError(f"overlay: needs a model with attention, got {kind}")
            if not overlay.parent.is_dir():
                raise FileError(f"overlay: needs a folder that exists, got {overlay.parent}")
        self.side = None if self.options.own_size else size or run.recipe.data.input_size
        self.has_several = False

    def check(self, file_format: str, inputs: int) -> None:
        """Note whether there are several images, whose overlays need names."""
        super().check(file_format, inputs)
        self.has_several = inputs > 1

    @torch.no_grad()
    def __call__(self, inputs: Sequence[str | Path]) -> list[ClassPrediction | FileError]:
        outputs, images = dict[int, Any](), dict[int, Tensor]()
        for n, path in enumerate(inputs):
            try:
                images[n] = self.read(path)
            except FileError as error:
                outputs[n] = error
        for n, logits in zip(images, _logits(self.model, list(images.values())), strict=True):
            outputs[n] = _prediction(self.run, logits, self.options.top)
            if self.options.overlay is not None:
                self._draw(images[n], Path(inputs[n]))
        return [outputs[n] for n in range(len(inputs))]

    def read(self, path: str | Path) -> Float[Tensor, "channel height width"]:
        """An image as the model takes it."""
        return read_run_image(self.run, path, size=self.side, invert=self.options.invert)

    def _draw(self, image: Tensor, source: Path) -> None:
        from regard.inspection.figures.maps import draw_image_attention  # imports matplotlib

        with look(self.model) as sight:
            self.model(image[None].to(next(self.model.parameters()).device))
        out = self.options.overlay
        name = f"{out.stem}-{source.stem}{out.suffix}" if self.has_several else out.name
        # the class token of the last layer: the classification head reads nothing else
        draw_image_attention(sight[sight.names[-1]], None, 0, image, path=out.with_name(name))

    def answer(
        self, given: JobInput, output: ClassPrediction, *, confidence: bool = False
    ) -> Answer:
        sure = self.sure(output, confidence)
        rows = [(given.text, name, f"{p:.4f}", *sure) for name, p in output]
        warning = output.warning(given.name)
        return Answer(rows, warnings=(warning,) if warning else ())

    def as_json(self, output: ClassPrediction) -> dict[str, Any]:
        classes = [{"class": label, "probability": p} for label, p in output]
        return {"classes": classes, "confidence": output.confidence}


def read_run_image(
    run: TrainedRun, path: str | Path, *, size: int | None, invert: bool = False
) -> Float[Tensor, "channel height width"]:
    """Read an image file as the run's model takes it: `size` pixels square, or its own size.

    Where the run's data is cropped to its ink (glyphs), so is the image, dark on light or light on
    dark; `invert` then means that the ink is dark. Other images are not cropped; `invert` swaps
    black and white.
    """
    multiple, channels = patch_size(run), run.model.config.channels
    if run.recipe.data.crops_to_ink:
        image = crop_to_ink(open_image(path, auto_background=True), size, invert=invert)
        return crop_to_multiple(image, multiple, path)
    image = read_image(path, size=size, multiple=multiple, channels=channels)
    return 1 - image if invert else image


def _logits(model: nn.Module, images: Sequence[Tensor]) -> list[Tensor]:
    """The logits of each image; those of one size are one batch."""
    logits, by_size = dict[int, Tensor](), defaultdict[torch.Size, list[int]](list)
    for n, image in enumerate(images):
        by_size[image.shape].append(n)
    for rows in by_size.values():
        batch = torch.stack([images[n] for n in rows]).to(next(model.parameters()).device)
        logits |= zip(rows, model(batch).cpu(), strict=True)
    return [logits[n] for n in range(len(images))]


def _prediction(run: TrainedRun, logits: Tensor, top: int) -> ClassPrediction:
    names = class_names(run)
    probabilities, labels = logits.softmax(-1).topk(min(top, len(names)))
    rows = zip(labels.tolist(), probabilities.tolist(), strict=True)
    classes = [(names[label], probability) for label, probability in rows]
    if run.calibration is None:
        return ClassPrediction(classes)
    confidence = run.calibration.confidence(float(top_log_odds(logits)))
    return ClassPrediction(classes, confidence=confidence, threshold=run.calibration.threshold)


def patch_size(run: TrainedRun) -> int:
    """The side of a patch of a vision Transformer; 1 for a convolutional network."""
    return run.model.config.patch_size if isinstance(run.model, VisionTransformer) else 1


def class_names(run: TrainedRun) -> list[str]:
    """Names of the run's classes: those of its data, or their numbers.

    >>> "".join(class_names(rg.load("glyphs")))
    '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ'
    """
    count, names = run.model.config.classes, run.recipe.data.class_names
    return list(names) if len(names) == count else [str(label) for label in range(count)]
