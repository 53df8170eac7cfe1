"""A recipe for labelled images: size, channels and model."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from regard.data.image.idx import find_idx, read_idx
from regard.data.image.image_collection import has_idx_files
from regard.errors import FileError
from regard.models import ResNetConfig
from regard.tasks.proposals.proposal import (
    Proposal,
    check_readable,
    choose_steps,
    inspect_or_raise,
    train_config,
)
from regard.tasks.recipe import Recipe
from regard.tasks.registry import find_task

BATCH_SIZE = 64
EPOCHS = 30
SIDES, MAX_SIDE = (16, 24, 28, 32, 48), 64
GREY_MODES = ("1", "L", "LA", "I", "I;16", "F")


def propose_images(paths: Sequence[Path], name: str) -> Proposal:
    """An image classifier for one folder per class, a table of labels, or IDX files."""
    if len(paths) != 1:
        raise FileError(f"data: needs one folder of images, or a table of labels, got {len(paths)}")
    check_readable(paths[0])
    kind: Any = find_task("images")
    task = kind(path=str(paths[0].resolve()))
    if has_idx_files(paths[0]):
        pixels = read_idx(find_idx(paths[0], "train-images-idx3"))
        task = replace(task, size=pixels.shape[-1], valid_images=min(5000, len(pixels) // 10))
    report = inspect_or_raise(task, "images", paths)
    sides = [min(map(int, size.split("x"))) for size in report.values("size").elements()]
    side = sorted(sides)[len(sides) // 2]
    size = side if has_idx_files(paths[0]) else next((n for n in SIDES if side <= n), MAX_SIDE)
    is_grey = all(mode in GREY_MODES for mode in report.values("mode"))
    train = report.sizes["train"]
    stages = 3 if size <= 32 else 4
    steps, reason = choose_steps(max(1.0, train / BATCH_SIZE), EPOCHS)
    comments = {
        "data.size": f"the median image has {side} pixels on its shorter side; at most {MAX_SIDE}",
        "data.channels": "grey" if is_grey else "RGB",
        "data.flip": "set it to true where the mirror image is of the same class",
        "model.width": "of the last stage; more accurate than a ViT below 100,000 images",
        "model.stages": "the last one sees images of 8 pixels or fewer",
        "train.steps": reason,
        "train.monitor": "the best weights by it are kept; early stopping, once `patience` is set",
    }
    recipe = Recipe(
        name=name,
        data=replace(task, size=size, channels=1 if is_grey else 3, flip=False),
        model=ResNetConfig(classes=1, channels=1 if is_grey else 3, width=64, stages=stages),
        train=train_config(steps, lr=2e-3, monitor="accuracy", batch_size=BATCH_SIZE),
    )  # fmt: skip
    return Proposal(recipe, comments, report)
