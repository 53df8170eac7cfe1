"""A trained model of pictures at work: what each file most likely shows."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import ConfigError
from regard.models import ResNet, VisionConfig, VisionTransformer
from regard.runs.run import Run
from regard.tasks.classification.evaluator import top_log_odds
from regard.tasks.classification.images import ImageData


class ClassPrediction(list[tuple[str, float]]):
    """The likeliest classes of a picture, by name, with their probabilities, the best first.

    `confidence` is the calibrated probability that the first one is right, lower where the picture
    shows none of the classes; None for a run without a calibration, which is never `unsure`.

    >>> found = ClassPrediction([("dog", 0.9), ("cat", 0.1)], confidence=0.2, threshold=0.5)
    >>> found[0], found.unsure
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
        """Whether the confidence is below the threshold that was chosen on held-out data."""
        return self.confidence is not None and self.confidence < self.threshold


def classify_run(
    run: Run, images: str | Path | Sequence[str | Path], *, top: int = 1, invert: bool = False
) -> list[ClassPrediction]:
    """Of each picture file the likeliest classes, by name, with their probabilities.

    A picture is read as those of the run's evaluation: see `read_run_image`. Each answer has a calibrated
    `confidence`, and is `unsure` below the run's threshold. This is `rg.classify`.

    >>> import tempfile
    >>> from PIL import Image
    >>> file = tempfile.mkdtemp() + "/black.png"
    >>> Image.new("L", (16, 16)).save(file)
    >>> (found,) = classify_run(rg.load_pretrained("glyphs"), [file])
    >>> len(found), found.unsure  # nothing is written there
    (1, True)
    """
    model, size = image_model(run)
    if top < 1:
        raise ConfigError(f"top: needs 1 or more, got {top}")
    images = [images] if isinstance(images, str | Path) else images
    found = []
    for path in images:
        image = read_run_image(run, path, size=size, invert=invert)
        with torch.no_grad():
            found.append(build_prediction(run, model(image[None])[0], top))
    return found


def read_run_image(
    run: Run, path: str | Path, *, size: int | None, invert: bool = False
) -> Float[Tensor, "channel height width"]:
    """A picture file as a run's model reads it: a square of `size`, or of its own size.

    Data that is `framed`, such as that of glyphs, is cut out by its ink, dark or light; `invert`
    says that it is dark. Other pictures are taken whole, and `invert` swaps black and white.

    >>> import tempfile
    >>> from PIL import Image
    >>> file = tempfile.mkdtemp() + "/white.png"
    >>> Image.new("L", (40, 30), 255).save(file)
    >>> read_run_image(rg.load_pretrained("glyphs"), file, size=24).shape
    torch.Size([1, 24, 24])
    """
    config = run.model.config
    return image_data(run).read_image(
        path,
        size=size,
        multiple=config.patch_size if isinstance(config, VisionConfig) else 1,
        channels=config.channels,
        invert=invert,
    )


def build_prediction(run: Run, logits: Float[Tensor, " classes"], top: int) -> ClassPrediction:
    """What a run's model says of a picture, with the run's confidence in it."""
    classes = top_classes(logits, class_names(run), top)
    if run.calibration is None:
        return ClassPrediction(classes)
    confidence = run.calibration.confidence(float(top_log_odds(logits)))
    return ClassPrediction(classes, confidence=confidence, threshold=run.calibration.threshold)


def top_classes(
    logits: Float[Tensor, " classes"], names: list[str], top: int
) -> list[tuple[str, float]]:
    """The names of the likeliest classes with their probabilities, the best first.

    >>> top_classes(torch.tensor([0.0, 99.0]), ["cat", "dog"], 1)
    [('dog', 1.0)]
    """
    chances, classes = logits.softmax(-1).topk(min(top, len(names)))
    return [(names[n], x) for n, x in zip(classes.tolist(), chances.tolist(), strict=True)]


def image_model(run: Run) -> tuple[VisionTransformer | ResNet, int]:
    """A run's model, if it is one of pictures, and how large those of its training were.

    >>> image_model(rg.load_pretrained("glyphs"))[1]
    24
    """
    model = run.model
    if not isinstance(model, VisionTransformer | ResNet):
        kind = type(model).__name__
        raise ConfigError(f"run: needs a model of pictures, got {kind}; try glyphs")
    return model, image_data(run).input_size


def image_data(run: Run) -> ImageData:
    """The data module of a run of an image classifier."""
    assert isinstance(run.recipe.data, ImageData)
    return run.recipe.data


def class_names(run: Run) -> list[str]:
    """What a run's classes are called: as its data say, or their numbers.

    >>> "".join(class_names(rg.load_pretrained("glyphs")))
    '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ'
    """
    names, count = image_data(run).class_names, run.model.config.classes
    return list(names) if len(names) == count else [str(label) for label in range(count)]
