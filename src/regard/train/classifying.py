"""A trained model of pictures at work: what each file most likely shows."""

from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from regard.data import read_picture
from regard.errors import ConfigError
from regard.models import ResNet, VisionTransformer
from regard.train.run import Run

CLOTHES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker")
CLOTHES += ("bag", "ankle boot")


def classify_run(
    run: Run, pictures: str | Path | Sequence[str | Path], *, top: int = 1, invert: bool = False
) -> list[list[tuple[str, float]]]:
    """Of each picture file the likeliest classes, by name, with their probabilities.

    Pictures are made as large as those of training; `invert` is for dark signs on light paper.
    This is `rg.classify`.

    >>> import tempfile
    >>> from PIL import Image
    >>> file = tempfile.mkdtemp() + "/black.png"
    >>> Image.new("L", (16, 16)).save(file)
    >>> ((found,),) = classify_run(rg.specimen("glyphs"), [file])
    >>> len(found[0]), 0 < found[1] <= 1
    (1, True)
    """
    model, size = seeing(run)
    if top < 1:
        raise ConfigError(f"top: needs 1 or more, got {top}")
    pictures = [pictures] if isinstance(pictures, str | Path) else pictures
    names, found = names_of(run), []
    for path in pictures:
        image = read_picture(str(path), size=size, channels=model.config.channels)
        with torch.no_grad():
            logits = model((1 - image if invert else image)[None])[0]
        found.append(likeliest(logits, names, top))
    return found


def likeliest(
    logits: Float[Tensor, " classes"], names: list[str], top: int
) -> list[tuple[str, float]]:
    """The names of the likeliest classes with their probabilities, the best first.

    >>> likeliest(torch.tensor([0.0, 99.0]), ["cat", "dog"], 1)
    [('dog', 1.0)]
    """
    chances, classes = logits.softmax(-1).topk(min(top, len(names)))
    return [(names[n], x) for n, x in zip(classes.tolist(), chances.tolist(), strict=True)]


def seeing(run: Run) -> tuple[VisionTransformer | ResNet, int]:
    """A run's model, if it is one of pictures, and how large those of its training were.

    >>> seeing(rg.specimen("glyphs"))[1]
    16
    """
    model = run.model
    if not isinstance(model, VisionTransformer | ResNet):
        kind = type(model).__name__
        raise ConfigError(f"run: needs a model of pictures, got {kind}; try glyphs")
    return model, getattr(model.config, "image", None) or getattr(run.recipe.data, "size", 28)


def names_of(run: Run) -> list[str]:
    """What a run's classes are called: as its data say, or their numbers.

    >>> "".join(names_of(rg.specimen("glyphs")))
    '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ'
    """
    count, told = run.model.config.classes, getattr(run.recipe.data, "classes", None)
    if told is not None and len(told) == count:
        return list(told)
    if "fashion" in str(getattr(run.recipe.data, "folder", "")) and count == len(CLOTHES):
        return list(CLOTHES)
    return [str(label) for label in range(count)]
