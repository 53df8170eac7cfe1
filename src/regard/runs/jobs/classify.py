"""Classification of many image files: bad files are reported, attention overlays drawn."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from regard.errors import ConfigError, FileError
from regard.inspection import look
from regard.models import VisionTransformer
from regard.runs.apply.classify import (
    ClassPrediction,
    build_prediction,
    patch_size,
    read_run_image,
)
from regard.runs.jobs.report import confidence_warning
from regard.runs.run import Run, require_verb


@dataclass(frozen=True, kw_only=True)
class ClassifyRequest:
    """Image files and how to read them.

    Args:
        images: image files.
        top: classes per image.
        size: side in pixels that images are resized to; None is that of training.
        own_size: keep each image's own size.
        invert: the ink is dark on a light ground.
        overlay: file to draw the attention to; several images get OVERLAY-NAME.

    >>> ClassifyRequest(images=["a.png"]).top
    3
    """

    images: Sequence[str | Path]
    top: int = 3
    size: int | None = None
    own_size: bool = False
    invert: bool = False
    overlay: Path | None = None


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
        prediction = self.prediction
        if prediction.confidence is None or not prediction.unsure:
            return ""
        return confidence_warning(
            str(self.path), prediction.confidence, prediction.threshold, "the class may be wrong"
        )


def classify_files(run: Run, request: ClassifyRequest) -> Iterator[ClassifiedFile]:
    """Classify image files one by one; the request is checked before the first.

    >>> (result,) = classify_files(rg.load("glyphs"), ClassifyRequest(images=["none.png"]))
    >>> type(result.error).__name__
    'FileError'
    """
    require_verb(run, "classify")
    patch = patch_size(run)
    if request.top < 1:
        raise ConfigError(f"top: needs 1 or more, got {request.top}")
    if request.own_size and request.size is not None:
        raise ConfigError(f"size: needs to be left out beside --own-size, got {request.size}")
    if request.size is not None and (request.size < patch or request.size % patch):
        raise ConfigError(f"size: needs a multiple of the patch, {patch}, got {request.size}")
    if request.overlay is not None:
        if not isinstance(run.model, VisionTransformer):
            kind = type(run.model).__name__
            raise ConfigError(f"overlay: needs a model with attention, got {kind}")
        if not request.overlay.parent.is_dir():
            raise FileError(f"overlay: needs a folder that exists, got {request.overlay.parent}")
    return _classify(run, request)


def _classify(run: Run, request: ClassifyRequest) -> Iterator[ClassifiedFile]:
    size = None if request.own_size else request.size or run.recipe.data.input_size
    for path in request.images:
        try:
            image = read_run_image(run, path, size=size, invert=request.invert)
        except FileError as error:
            yield ClassifiedFile(path, ClassPrediction(), error)
            continue
        overlay = request.overlay
        if overlay is not None and len(request.images) > 1:
            overlay = overlay.with_name(f"{overlay.stem}-{Path(path).stem}{overlay.suffix}")
        logits = _logits(run, image, overlay)
        yield ClassifiedFile(path, build_prediction(run, logits, request.top))


@torch.no_grad()
def _logits(run: Run, image: Tensor, overlay: Path | None) -> Tensor:
    batch = image[None].to(next(run.model.parameters()).device)
    if overlay is None:
        return run.model(batch)[0].cpu()
    from regard.inspection.figures.maps import draw_overlay  # imports matplotlib

    with look(run.model) as sight:
        logits = run.model(batch)[0].cpu()
    # the class token of the last layer: the classification head reads nothing else
    draw_overlay(sight[sight.names[-1]], image, path=overlay)
    return logits
