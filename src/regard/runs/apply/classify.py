"""Classification of image files by the vision model of a run, with attention overlays."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import ConfigError, FileError
from regard.inspection import look
from regard.models import VisionTransformer
from regard.ops.maybe_none import MaybeNone
from regard.runs.apply.report import confidence_warning
from regard.runs.contents import Device, RunContents, require_verb
from regard.runs.text_model import model_on
from regard.tasks.classification.evaluator import top_log_odds

BATCH_SIZE = 32  # images that are read and classified at a time


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


class ClassifiedFile(NamedTuple):
    """The prediction for one file, or the error that it could not be read with.

    >>> ClassifiedFile("a.png", ClassPrediction([("A", 0.9)])).warning  # no calibrated confidence
    ''
    """

    path: str | Path
    prediction: ClassPrediction
    error: FileError | None = None

    @property
    def warning(self) -> str:
        """The low-confidence warning; empty if there is none."""
        confidence, threshold = self.prediction.confidence, self.prediction.threshold
        if confidence is None or not self.prediction.unsure:
            return ""
        return confidence_warning(self.path, confidence, threshold, "the class may be wrong")


def classify_run(
    run: RunContents,
    images: str | Path | Sequence[str | Path],
    *,
    top: int = 1,
    invert: bool = False,
    device: Device | None = None,
) -> list[ClassPrediction]:
    """The most probable classes of each image file, preprocessed as in the run's evaluation.

    Args:
        run: a run of a vision model.
        images: image files.
        top: classes per image.
        invert: see `read_run_image`.
        device: where to compute, on a copy of the model; None is where the model is.

    >>> classify_run(rg.load("glyphs", device="cpu"), ["none.png"])
    Traceback (most recent call last):
        ...
    regard.errors.FileError: none.png: needs to be an image, got no such file
    """
    images = [images] if isinstance(images, str | Path) else images
    predictions = []
    for file in classify_files(run, images, top=top, invert=invert, device=device):
        if file.error is not None:
            raise file.error
        predictions.append(file.prediction)
    return predictions


def classify_files(
    run: RunContents,
    images: Sequence[str | Path],
    *,
    top: int = 3,
    size: int | None = None,
    own_size: bool = False,
    invert: bool = False,
    overlay: Path | None = None,
    device: Device | None = None,
) -> Iterator[ClassifiedFile]:
    """Classify image files, a batch at a time; all options are checked before the first.

    Args:
        run: a run of a vision model.
        images: image files.
        top: classes per image.
        size: side in pixels that images are resized to; None is that of training.
        own_size: keep each image's own size.
        invert: see `read_run_image`.
        overlay: file to draw the attention to; several images get OVERLAY-NAME.
        device: where to compute, on a copy of the model; None is where the model is.

    >>> (result,) = classify_files(rg.load("glyphs"), ["none.png"])
    >>> type(result.error).__name__
    'FileError'
    """
    require_verb(run, "classify")
    patch = patch_size(run)
    if top < 1:
        raise ConfigError(f"top: needs 1 or more, got {top}")
    if own_size and size is not None:
        raise ConfigError(f"size: needs to be unset with --own-size, got {size}")
    if size is not None and (size < patch or size % patch):
        raise ConfigError(f"size: needs a multiple of the patch, {patch}, got {size}")
    if overlay is not None:
        if not isinstance(run.model, VisionTransformer):
            kind = type(run.model).__name__
            raise ConfigError(f"overlay: needs a model with attention, got {kind}")
        if not overlay.parent.is_dir():
            raise FileError(f"overlay: needs a folder that exists, got {overlay.parent}")
    model, side = model_on(run.model, device), None if own_size else size or run.data.input_size

    def classify(paths: Sequence[str | Path]) -> list[ClassifiedFile]:
        files, read = (
            [ClassifiedFile(path, ClassPrediction()) for path in paths],
            dict[int, Tensor](),
        )
        for n, path in enumerate(paths):
            try:
                read[n] = read_run_image(run, path, size=side, invert=invert)
            except FileError as error:
                files[n] = ClassifiedFile(path, ClassPrediction(), error)
        for n, logits in zip(read, _logits(model, list(read.values())), strict=True):
            files[n] = ClassifiedFile(paths[n], _prediction(run, logits, top))
            if overlay is not None:
                name = f"{overlay.stem}-{Path(paths[n]).stem}{overlay.suffix}"
                _draw(model, read[n], overlay.with_name(name) if len(images) > 1 else overlay)
        return files

    blocks = (images[n : n + BATCH_SIZE] for n in range(0, len(images), BATCH_SIZE))
    return chain.from_iterable(map(classify, blocks))


def read_run_image(
    run: RunContents, path: str | Path, *, size: int | None, invert: bool = False
) -> Float[Tensor, "channel height width"]:
    """Read an image file as the run's model takes it: `size` pixels square, or its own size.

    Where the run's data is cropped to its ink (glyphs), so is the image, dark on light or light on
    dark; `invert` then means that the ink is dark. Other images are not cropped; `invert` swaps
    black and white.
    """
    channels = run.model.config.channels
    return run.data.read_image(
        path, size=size, multiple=patch_size(run), channels=channels, invert=invert
    )


@torch.no_grad()
def _logits(model: nn.Module, images: Sequence[Tensor]) -> list[Tensor]:
    """The logits of each image; those of one size are one batch."""
    logits, by_size = dict[int, Tensor](), defaultdict[torch.Size, list[int]](list)
    for n, image in enumerate(images):
        by_size[image.shape].append(n)
    for rows in by_size.values():
        batch = torch.stack([images[n] for n in rows]).to(next(model.parameters()).device)
        logits |= zip(rows, model(batch).cpu(), strict=True)
    return [logits[n] for n in range(len(images))]


def _draw(model: nn.Module, image: Tensor, path: Path) -> None:
    from regard.inspection.figures.maps import draw_overlay  # imports matplotlib

    with torch.no_grad(), look(model) as sight:
        model(image[None].to(next(model.parameters()).device))
    # the class token of the last layer: the classification head reads nothing else
    draw_overlay(sight[sight.names[-1]], image, path=path)


def _prediction(run: RunContents, logits: Tensor, top: int) -> ClassPrediction:
    names = class_names(run)
    probabilities, labels = logits.softmax(-1).topk(min(top, len(names)))
    rows = zip(labels.tolist(), probabilities.tolist(), strict=True)
    classes = [(names[label], probability) for label, probability in rows]
    if run.calibration is None:
        return ClassPrediction(classes)
    confidence = run.calibration.confidence(float(top_log_odds(logits)))
    return ClassPrediction(classes, confidence=confidence, threshold=run.calibration.threshold)


def patch_size(run: RunContents) -> int:
    """The side of a patch of a vision Transformer; 1 for a convolutional network."""
    return run.model.config.patch_size if isinstance(run.model, VisionTransformer) else 1


def class_names(run: RunContents) -> list[str]:
    """Names of the run's classes: those of its data, or their numbers.

    >>> "".join(class_names(rg.load("glyphs")))
    '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ'
    """
    count, names = run.model.config.classes, run.data.class_names
    return list(names) if len(names) == count else [str(label) for label in range(count)]
