"""Claims about Vision Transformers that train models: learned positions, data size, fine-tuning."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.claims.charts import Lines
from regard.claims.claim import Evidence, Measure, Trial, claim, literature
from regard.claims.families.vision import VIT, similarity
from regard.claims.measurements import Batch, accuracy, count_parameters, label_loss, train_model
from regard.models import ResNet, ResNetConfig, VisionTransformer, resnet_of_size
from regard.ops import interpolate_positions


@claim("L6", source="homework", verdict="conditional", trained=True, study="vision")
def positions_learn_locality(trial: Trial) -> Evidence:
    """The position embeddings of a ViT preserve locality: those of near patches are similar.

    Condition: They were trained, and the labels depend on where things are. If labels depend on
        shape alone it takes many images; 100 leave the table as random as it was.
    Refutation: a new table that is local already, or one that is not after training on places
    Remark: Was open; settled at toy size. On shapes alone the difference stays about 0 with 100
        images, and reaches 0.1–0.3 after 2000 steps with 50,000.
    """
    shapes = [m for m in shape_study(trial) if m.kind == "ViT"]
    few, *_, many = sorted({m.images for m in shapes})
    groups = {"place": place_study(trial)} | {
        f"shape, {n} images": [m for m in shapes if m.images == n] for n in (few, many)
    }
    curves = {  # step of training, seed
        f"label by {name}": torch.tensor(
            [[_locality(x) for x in m.tables.values()] for m in models]
        ).mT
        for name, models in groups.items()
    }
    place, little, _ = curves.values()
    start, end = place[0], place[-1]
    after = Measure.mean("trained on 100 shapes", little[-1])
    percent = torch.linspace(0, 100, len(place))
    axes = "% of the training steps", "cosine, neighbours − far patches"
    return Evidence(
        holds=min(start.min(), little[-1].min(), end.min()) > 0.2,
        holds_if=end.min() > 0.2
        and start.abs().max() < 0.2
        and after.above(-0.2)
        and after.below(0.2),
        measures={
            "new table: cosine of neighbours less that of far patches": start,
            "trained": {name: x[-1] for name, x in curves.items()},
        },
        chart=Lines(percent, curves, *axes),
    )


@claim("L7", source="homework", verdict="true", trained=True, study="vision")
def interpolation(trial: Trial) -> Evidence:
    """For images of another size the position embeddings must be interpolated.

    Refutation: a table that fits as it is, or an accuracy without interpolation that is as good
    Remark: At the training size interpolation is the identity. The image can be resized instead.
    """
    models, sides = place_study(trial), [16, 20, 24, 32]
    tables = {
        "interpolated": None,
        "rows repeated in order": lambda rows, count: rows[torch.arange(count) % len(rows)],
        "zeros for new rows": lambda rows, count: F.pad(rows, (0, 0, 0, count - len(rows))),
    }
    curves = {
        name: torch.tensor([_accuracies_by_side(trial, m.model, sides, make) for m in models])
        for name, make in tables.items()
    }
    resized, *others = curves.values()
    table = models[0].tables[max(models[0].tables)]
    same = (interpolate_positions(table, (4, 4), (4, 4)) - table).abs().max()
    fits = [(side // 4) ** 2 + 1 == len(table) for side in sides]
    means = {name: x.mean(0) for name, x in curves.items()}
    return Evidence(
        holds=resized.min() > 0.75
        and min((resized - x)[:, 1:].min() for x in others) > 0.1
        and same == 0
        and fits == [True, False, False, False],
        measures={
            "accuracy at 24 × 24": {name: x[:, sides.index(24)] for name, x in curves.items()},
            "accuracy at 16 × 16": resized[:, 0],
            "largest change of the table at the same size": same,
        },
        chart=Lines(sides, means, "side of the image (trained at 16)", "accuracy"),
    )


@claim("L10", source="homework", verdict="true", trained=True, study="vision")
def cnn_against_vit(trial: Trial) -> Evidence:
    """With little data a CNN is ahead of a ViT; with more data the gap narrows.

    Refutation: a ViT ahead at 100 images, or a last gap above half of the largest
    Remark: At toy size: shapes of 16 × 16, equal parameters and steps. The CNN solves them with 100
        images, so the ViT can only catch up here. With 6,400 images the gap is a quarter, and still
        there: it narrows, it does not close.
    """
    sizes, accuracies = _by_size(shape_study(trial), "test")
    gaps = accuracies["CNN"] - accuracies["ViT"]  # size, seed
    few, last = Measure.mean("100 images", gaps[0]), Measure.mean("last", gaps[-1])
    narrowed = Measure.mean("gap at the first size less gap at the last", gaps[0] - gaps[-1])
    return Evidence(
        holds=few.above(0) and narrowed.above(0) and last.below(0.5 * float(gaps.mean(1).max())),
        measures={
            **{f"CNN less ViT, {n} images": row for n, row in zip(sizes, gaps, strict=True)},
            narrowed.name: narrowed,
            **{f"accuracy of the {k}, {sizes[0]} images": x[0] for k, x in accuracies.items()},
        },
        chart=Lines(sizes, accuracies, "training images", "test accuracy", log="x"),
    )


@claim("L11", source="homework", verdict="true", trained=True, study="vision")
def vit_overfits(trial: Trial) -> Evidence:
    """A ViT overfits more than a CNN.

    Refutation: a larger difference between training and test accuracy of the CNN
    Remark: Shown at toy size and from scratch, with equal parameters and steps; the difference goes
        away with more images.
    """
    models = shape_study(trial)
    (sizes, train), (_, test) = (_by_size(models, what) for what in ("train", "test"))
    lost = {kind: train[kind] - test[kind] for kind in train}
    more = [Measure.mean("ViT less CNN", x) for x in lost["ViT"] - lost["CNN"]]
    few = replace(more[0], name="ViT less CNN, 100 images")
    by_size = {
        kind: {f"{n} images": x for n, x in zip(sizes, rows, strict=True)}
        for kind, rows in lost.items()
    }
    return Evidence(
        holds=few.above(0) and all(x.above(-0.03) for x in more),
        measures={"train less test accuracy": by_size, few.name: few},
        chart=Lines(sizes, lost, "training images", "train − test accuracy", log="x"),
    )


literature(
    "L12",
    "ViT overtakes CNNs when it is pre-trained on 300 million images; on 1.3 million the large "
    "ViT is below the base one, and on 9 million ViT-B/32 is below a ResNet50.",
    source="homework",
    remark="Dosovitskiy et al., An image is worth 16x16 words, ICLR 2021 (arXiv 2010.11929), "
    "figures 3 and 4; the 9 million are a subset of JFT, not of ImageNet. Disputed since: Smith "
    "et al., ConvNets match Vision Transformers at scale, 2023 (arXiv 2310.16764), at equal "
    "compute. Neither can be repeated at toy size.",
)


literature(
    "L13",
    "The ViTs of the paper were fine-tuned on ImageNet-21k.",
    source="homework",
    remark="They were not: they were pre-trained on the large set, ImageNet-21k or JFT-300M, and "
    "fine-tuned on the smaller ones that they were tested on. Dosovitskiy et al., ICLR 2021 (arXiv "
    "2010.11929), sections 3.2 and 4.1.",
)


@dataclass(frozen=True)
class VisionModel:
    """A trained model, its accuracies, and, of a ViT, its position table by step of training."""

    kind: str
    images: int
    seed: int
    model: Any  # a VisionTransformer or a ResNet
    train: float
    test: float
    tables: dict[int, Tensor]  # every tenth of the training


def shape_study(trial: Trial) -> list[VisionModel]:
    """A ViT and a ResNet of as many parameters per number of images and seed."""
    return [
        _train_on_shapes(kind, count, seed, trial.size(250, 2000), trial.device)
        for count in (100, 800, trial.size(6400, 50000))
        for seed in trial.seeds(4, 5)
        for kind in ("CNN", "ViT")
    ]


def place_study(trial: Trial) -> list[VisionModel]:
    """ViTs that say in which quarter of the image a blob is."""
    return [_train_on_places(n, trial.size(90, 400), trial.device) for n in trial.seeds(3, 5)]


@cache
def _train_on_shapes(kind: str, count: int, seed: int, steps: int, device: str) -> VisionModel:
    rng = torch.Generator().manual_seed(seed)
    data, test = draw_shapes(rng, count), draw_shapes(rng, 1000)
    resnet = resnet_of_size(
        count_parameters(VisionTransformer(VIT)), ResNetConfig(classes=4, blocks=1)
    )
    build = (lambda: ResNet(resnet)) if kind == "CNN" else (lambda: VisionTransformer(VIT))
    lr = 1e-2 if kind == "CNN" else 3e-3  # the best of a few for each
    return _train(kind, build, data, test, lr=lr, seed=seed, steps=steps, device=device)


@cache
def _train_on_places(seed: int, steps: int, device: str) -> VisionModel:
    rng = torch.Generator().manual_seed(seed)
    data, test = draw_places(rng, 6400), draw_places(rng, 1000)
    options = {"lr": 3e-3, "seed": seed, "steps": steps, "device": device}
    return _train("ViT", lambda: VisionTransformer(VIT), data, test, **options)


def _train(
    kind: str,
    build: Callable[[], nn.Module],
    data: Batch,
    test: Batch,
    *,
    steps: int,
    **options: Any,
) -> VisionModel:
    count, batches, tables = len(data["labels"]), 0, dict[int, Tensor]()

    def draw(rng: torch.Generator) -> Batch:
        chosen = torch.randint(count, (32,), generator=rng)
        return {name: x[chosen] for name, x in data.items()}

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        nonlocal batches
        if batches % max(1, steps // 10) == 0 and isinstance(model, VisionTransformer):
            tables[batches] = model.positions.detach().double().cpu()
        batches += 1
        return label_loss(model, batch)

    model = train_model(build, draw, loss, steps=steps, **options).cpu()
    if isinstance(model, VisionTransformer):
        tables[steps] = model.positions.detach().double()
    train = accuracy(model, {name: x[:1000] for name, x in data.items()})
    return VisionModel(kind, count, options["seed"], model, train, accuracy(model, test), tables)


def draw_shapes(rng: torch.Generator, count: int) -> Batch:
    """Noisy 16 × 16 images of a disc, cross, ring or frame at a random place, and which it is."""
    label = torch.randint(4, (count,), generator=rng)
    x, y, radius = _coordinates(rng, count, 16, reach=0.4, radii=(0.5, 0.65))
    circle, box = (x * x + y * y).sqrt(), torch.maximum(x, y)
    inside = [  # positive inside the shape
        1 - circle,
        torch.minimum(0.35 - torch.minimum(x, y), 1 - box),
        torch.minimum(1 - circle, circle - 0.55),
        torch.minimum(0.9 - box, box - 0.5),
    ]
    chosen = torch.stack(inside, 1)[torch.arange(count), label]
    return {"inputs": _add_noise(rng, (16 * radius * chosen).sigmoid()), "labels": label}


def draw_places(rng: torch.Generator, count: int, side: int = 16) -> Batch:
    """Noisy images of a blob, and the quarter of the image that it is in."""
    x, y, _ = _coordinates(rng, count, side, reach=0.9, radii=(0.35, 0.35), signed=True)
    right, low = x[:, 0, side // 2] < 0, y[:, side // 2, 0] < 0
    images = _add_noise(rng, (-(x * x + y * y) / 2).exp())
    return {"inputs": images, "labels": 2 * right + low.long()}


def _coordinates(
    rng: torch.Generator,
    count: int,
    side: int,
    reach: float,
    radii: tuple[float, float],
    signed: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Coordinates of all pixels around a random centre, in units of a random radius."""
    centre = reach * (2 * torch.rand(2, count, 1, 1, generator=rng) - 1)
    radius = radii[0] + (radii[1] - radii[0]) * torch.rand(count, 1, 1, generator=rng)
    axis = (torch.arange(side) + 0.5) / side * 2 - 1
    x = ((axis - centre[0]) / radius).expand(count, side, side)
    y = ((axis[:, None] - centre[1]) / radius).expand(count, side, side)
    return (x, y, radius) if signed else (x.abs(), y.abs(), radius)


def _add_noise(rng: torch.Generator, images: Tensor) -> Tensor:
    return (images + 0.1 * torch.randn(images.shape, generator=rng))[:, None]


def _by_size(models: list[VisionModel], what: str) -> tuple[list[int], dict[str, Tensor]]:
    """Accuracies by kind of model: (number of images, seed)."""
    sizes = sorted({m.images for m in models})
    return sizes, {
        kind: torch.tensor(
            [[getattr(m, what) for m in models if (m.kind, m.images) == (kind, n)] for n in sizes]
        )
        for kind in ("CNN", "ViT")
    }


def _locality(table: Tensor) -> float:
    """Mean cosine of neighbouring patches, less that of patches two and more apart."""
    grid = round((len(table) - 1) ** 0.5)
    axis = torch.arange(grid).double()
    places = torch.cartesian_prod(axis, axis)
    distance = torch.cdist(places, places)
    cosine = similarity(table[1:])
    return float(cosine[distance == 1].mean() - cosine[distance >= 2].mean())


def _accuracies_by_side(
    trial: Trial,
    model: VisionTransformer,
    sides: list[int],
    make_table: Callable[[Tensor, int], Tensor] | None,
) -> list[float]:
    """Accuracy by size of the image; without a new table the model interpolates its table."""
    accuracies = []
    for side in sides:
        data = draw_places(torch.Generator().manual_seed(trial.seed + side), 1000, side)
        other = model
        if make_table:
            other = deepcopy(model)
            other.config = replace(model.config, image_size=side)
            patches = make_table(model.positions[1:], (side // 4) ** 2)
            other.positions = nn.Parameter(torch.cat([model.positions[:1], patches]))
        accuracies.append(accuracy(other, data))
    return accuracies
