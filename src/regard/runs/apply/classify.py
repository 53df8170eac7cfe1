"""Classification of image files by the vision model of a run."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import ConfigError
from regard.models import VisionTransformer
from regard.runs.run import Device, Run, model_on, require_verb
from regard.tasks.classification.evaluator import top_log_odds


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
        confidence: float | None = None,
        threshold: float = 0.0,
    ):
        super().__init__(classes)
        self.confidence, self.threshold = confidence, threshold

    @property
    def unsure(self) -> bool:
        """Whether the confidence is below the threshold chosen on held-out data."""
        return self.confidence is not None and self.confidence < self.threshold


def classify_run(
    run: Run,
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

    >>> import tempfile
    >>> from PIL import Image
    >>> file = tempfile.mkdtemp() + "/black.png"
    >>> Image.new("L", (16, 16)).save(file)
    >>> (prediction,) = classify_run(rg.load("glyphs", device="cpu"), [file])
    >>> len(prediction), prediction.unsure  # an empty image
    (1, True)
    """
    require_verb(run, "classify")
    if top < 1:
        raise ConfigError(f"top: needs 1 or more, got {top}")
    model, size = model_on(run.model, device), run.recipe.data.input_size
    where, predictions = next(model.parameters()).device, []
    for path in [images] if isinstance(images, str | Path) else images:
        image = read_run_image(run, path, size=size, invert=invert)
        with torch.no_grad():
            predictions.append(build_prediction(run, model(image[None].to(where))[0].cpu(), top))
    return predictions


def read_run_image(
    run: Run, path: str | Path, *, size: int | None, invert: bool = False
) -> Float[Tensor, "channel height width"]:
    """Read an image file as the run's model takes it: `size` pixels square, or its own size.

    Where the run's data is cropped to its ink (glyphs), so is the image, dark on light or light on
    dark, and `invert` says that the ink is dark. Other images are taken whole; `invert` swaps black
    and white.

    >>> import tempfile
    >>> from PIL import Image
    >>> file = tempfile.mkdtemp() + "/white.png"
    >>> Image.new("L", (40, 30), 255).save(file)
    >>> read_run_image(rg.load("glyphs"), file, size=24).shape
    torch.Size([1, 24, 24])
    """
    return run.recipe.data.read_image(
        path, size=size, multiple=patch_size(run), channels=run.model.config.channels, invert=invert
    )


def build_prediction(run: Run, logits: Float[Tensor, " classes"], top: int) -> ClassPrediction:
    """The top classes of one image, with the run's calibrated confidence."""
    classes = top_classes(logits, class_names(run), top)
    if run.calibration is None:
        return ClassPrediction(classes)
    confidence = run.calibration.confidence(float(top_log_odds(logits)))
    return ClassPrediction(classes, confidence=confidence, threshold=run.calibration.threshold)


def top_classes(
    logits: Float[Tensor, " classes"], names: list[str], top: int
) -> list[tuple[str, float]]:
    """Names and probabilities of the most probable classes, best first.

    >>> top_classes(torch.tensor([0.0, 99.0]), ["cat", "dog"], 1)
    [('dog', 1.0)]
    """
    probabilities, classes = logits.softmax(-1).topk(min(top, len(names)))
    rows = zip(classes.tolist(), probabilities.tolist(), strict=True)
    return [(names[n], x) for n, x in rows]


def patch_size(run: Run) -> int:
    """The side of a patch of a vision Transformer; 1 for a convolutional network."""
    return run.model.config.patch_size if isinstance(run.model, VisionTransformer) else 1


def class_names(run: Run) -> list[str]:
    """Names of the run's classes: those of its data, or their numbers.

    >>> "".join(class_names(rg.load("glyphs")))
    '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ'
    """
    count, names = run.model.config.classes, run.recipe.data.class_names
    return list(names) if len(names) == count else [str(label) for label in range(count)]
