"""A recipe for labelled images: size, channels and model."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from regard.data.image.image_collection import has_idx_files
from regard.data.image.image_file import find_idx, read_idx
from regard.models import ResNetConfig
from regard.tasks.baselines.image_models import mirror_accuracy
from regard.tasks.proposals.proposal import Proposal, inspect_or_raise, make_proposal, one_path
from regard.tasks.registry import find_task

BATCH_SIZE = 64
EPOCHS = 30
FEW_IMAGES = 1000
MIN_IMAGES = 100  # to see whether mirror images keep the class
MIN_KNOWN, MIN_SHARE = 0.05, 0.85  # accuracy above chance, and the share that mirror images keep
SIDES, MAX_SIDE = (16, 24, 28, 32, 48), 64
GREY_MODES = ("1", "L", "LA", "I", "I;16", "F")


def propose_images(paths: Sequence[Path], name: str) -> Proposal:
    """An image classifier for one folder per class, a table of labels, or IDX files."""
    path = one_path(paths, "one folder of images, or a table of labels")
    kind: Any = find_task("images")
    task = kind(path=str(path.resolve()))
    if has_idx_files(path):
        pixels = read_idx(find_idx(path, "train-images-idx3"))
        task = replace(task, size=pixels.shape[-1], valid_images=min(5000, len(pixels) // 10))
    report = inspect_or_raise(task, "images", paths)
    sides = [min(map(int, size.split("x"))) for size in report.values("size").elements()]
    side = sorted(sides)[len(sides) // 2]
    size = side if has_idx_files(path) else next((n for n in SIDES if side <= n), MAX_SIDE)
    is_grey = all(mode in GREY_MODES for mode in report.values("mode"))
    channels = 1 if is_grey else 3
    task = replace(task, size=size, channels=channels)
    is_flipped, reason = _choose_flip(task)
    width, blocks = (64, 2) if report.sizes["train"] < FEW_IMAGES else (128, 1)
    comments = {
        "data.size": f"the median image has {side} pixels on its shorter side; at most {MAX_SIDE}",
        "data.channels": "grey" if is_grey else "RGB",
        "data.flip": reason,
        "data.shift": "pixels, in each direction",
        "model.width": f"of the last stage; 64 below {FEW_IMAGES:,} images; a ViT needs 100,000",
        "model.stages": "the last one sees images of 8 pixels or fewer",
    }
    return make_proposal(
        name,
        replace(task, flip=is_flipped, shift=max(2, size // 12)),
        ResNetConfig(
            classes=1, channels=channels, stages=3 if size <= 32 else 4, width=width, blocks=blocks
        ),
        report,
        comments,
        epoch_steps=report.sizes["train"] / BATCH_SIZE,
        epochs=EPOCHS,
        monitor="accuracy",
        batch_size=BATCH_SIZE,
    )


def _choose_flip(task: Any) -> tuple[bool, str]:
    """Whether mirror images are told as well as the images themselves, and the sentence."""
    images, labels = task.train_split(0)
    classes = int(labels.max()) + 1
    if len(labels) < MIN_IMAGES:
        return False, f"below {MIN_IMAGES} images there is no telling whether mirror images keep it"
    plain, mirrored = mirror_accuracy(images, labels, classes)
    known, above = plain - 1 / classes, mirrored - 1 / classes
    measured = (
        f"a linear model is right on {plain:.2f} of new images, {mirrored:.2f} of mirrored ones"
    )
    if known < MIN_KNOWN:
        return False, f"{measured}: too few to see whether these keep the class"
    is_safe = above >= MIN_SHARE * known
    return is_safe, f"{measured}: they {'keep' if is_safe else 'may change'} the class"
