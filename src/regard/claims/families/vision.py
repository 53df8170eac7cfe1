"""Claims about Vision Transformers: patches, positions, the class token, the head."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.claims.charts import Bars, Lines, Maps, Points
from regard.claims.claim import Evidence, Measure, Trial, claim
from regard.claims.measurements import jacobian, outputs_of
from regard.models import VisionConfig, VisionTransformer, vision_base
from regard.nn import PatchEmbedding
from regard.ops import patchify, sinusoidal, unpatchify

VIT = VisionConfig(
    classes=4, image_size=16, patch_size=4, channels=1, layers=2, dim=28, heads=4, dropout=0.0
)


@claim("L1", source="homework", verdict="true")
def patches_as_convolution(trial: Trial) -> Evidence:
    """Embedding the patches of an image is a convolution whose kernel and stride are the patch
    size.

    Refutation: a difference between the convolution and W · flatten(patch) + b
    """
    errors, overlapping = {}, {}
    linear, convolved = torch.zeros(0), torch.zeros(0)
    for size in (2, 4, 8):
        layer = trial.build(lambda size=size: PatchEmbedding(3, 12, size))
        images, (weight, bias) = trial.normal(2, 3, 24, 24), layer.project.parameters()
        linear = torch.stack([weight.flatten(1) @ p + bias for p in patchify(images, size)[0]])
        convolved = F.conv2d(images, weight, bias, stride=size)[0].flatten(1).mT
        errors[size] = max((x - linear).abs().max() for x in (convolved, layer(images)[0]))
        overlapping[size] = F.conv2d(images, weight, bias, stride=size // 2)[0, 0].numel()
    points = {"feature of a token": (linear.flatten(), convolved.flatten())}
    return Evidence(
        holds=max(errors.values()) < 1e-12,
        measures={
            **{f"largest difference, patches of {n}": x for n, x in errors.items()},
            "tokens, patches of 8": {"stride 8": len(convolved), "stride 4": overlapping[8]},
        },
        chart=Points(points, "W · flatten(patch) + b", "convolution, stride 8"),
    )


@claim("L2", source="homework", verdict="true")
def token_count(trial: Trial) -> Evidence:
    """A 224 × 224 image in patches of 16 is 196 patches of 768 numbers, and 197 tokens.

    Refutation: another count in the model that is built
    Remark: The count grows with the square of the side: 384 × 384 gives 576 + 1.
    """
    expected = {
        "224 / 32": (49, 3072, 50),
        "224 / 16": (196, 768, 197),
        "384 / 16": (576, 768, 577),
        "224 / 14": (256, 588, 257),
    }
    counts = {}
    for name in expected:
        side, patch = map(int, name.split(" / "))
        config = vision_base(classes=10, image_size=side, patch_size=patch, layers=1)
        with torch.device("meta"):  # shapes only
            model, image = VisionTransformer(config), torch.empty(1, 3, side, side)
            patches, tokens = patchify(image, patch), model.encode(image)
        counts[name] = (*patches.shape[1:], tokens.shape[1])
    return Evidence(
        holds=counts == expected,
        measures={
            "patches, 224 / 16": counts["224 / 16"][0],
            "numbers per patch, 224 / 16": counts["224 / 16"][1],
            "tokens": {name: n for name, (_, _, n) in counts.items()},
        },
    )


@claim("L3", source="homework", verdict="false")
def spatial_bias(trial: Trial) -> Evidence:
    """A ViT has no spatial bias built in.

    Correction: It has a weak one: a token sees the pixels of one patch, and all patches share one
        embedding, which follows shifts by whole patches. A convolution follows every shift.
    Refutation: an embedding that does not follow a shift by one patch, or tokens that see pixels of
        other patches
    """
    size, side, images = 4, 16, trial.normal(20, 1, 16, 16)
    embedding = trial.build(lambda: PatchEmbedding(1, 8, size))
    convolution = trial.build(lambda: nn.Conv2d(1, 8, 3, padding=1, padding_mode="circular"))
    dense = trial.build(lambda: nn.Linear(side * side, side * side // size**2))
    shifts = list(range(2 * size + 1))
    layers = {
        "patch embedding": (embedding.project, size),
        "convolution": (convolution, 1),
        "dense layer": (lambda x: dense(x.flatten(1)).view(len(x), 1, 4, 4), size),
    }
    errors = {name: _shift_errors(f, images, shifts, n) for name, (f, n) in layers.items()}
    patches, convolved, densely = errors.values()
    reach = jacobian(lambda x: embedding(x)[0].sum(-1), images[:1])
    pixels = (reach[:, 0, 0] != 0).flatten(1).sum(1)
    whole = patches[[size, 2 * size]].max()
    part = patches[[n for n in shifts if n % size]].min()
    return Evidence(
        holds=whole > 1e-6 and pixels.min() == side * side,
        corrected=whole < 1e-12
        and part > 0.1
        and convolved.max() < 1e-12
        and densely[1:].min() > 0.1
        and pixels.max() == size**2,
        measures={
            "error of a ViT's embedding, shift by a patch": whole,
            "smallest error, shift by part of a patch": part,
            "largest error of a convolution, any shift": convolved.max(),
            "pixels that a token sees, of 256": pixels.max(),
        },
        chart=Lines(shifts, errors, "shift in pixels, patches of 4", "error"),
    )


@claim("L4", source="homework", verdict="true")
def patch_order(trial: Trial) -> Evidence:
    """Without position embeddings a ViT cannot see the order of the patches.

    Refutation: logits that change when patches are shuffled and there are no positions
    Remark: At the class token. The outputs of the patches are shuffled along.
    """

    def draw() -> dict[str, Tensor]:
        model, images = _small_vit(trial), trial.normal(4, 1, 16, 16)
        order = torch.randperm(16, generator=trial.rng)
        shuffled = unpatchify(patchify(images, 4)[:, order], 4, (4, 4))
        changes = {}
        for name, scale in (("without positions", 0), ("with positions", 1)):
            model.positions.data = scale * trial.normal(17, 16)
            changes[name] = (model(shuffled) - model(images)).abs().max()
        model.positions.data.zero_()
        outputs, moved = (model.encode(x)[:, 1:] for x in (images, shuffled))
        return changes | {"followed": (moved - outputs[:, order]).abs().max()}

    without, within, followed = trial.repeat(10, draw).values()
    bars = {"without positions": without.max(), "with positions": within.mean()}
    return Evidence(
        holds=max(without.max(), followed.max()) < 1e-12 and within.min() > 1e-3,
        measures={
            "largest change of a logit, without positions": without.max(),
            "largest change of a logit, with positions": within,
            "outputs of the patches: difference from shuffled ones": followed.max(),
        },
        chart=Bars(bars, "largest change of a logit, patches shuffled"),
    )


@claim("L5", source="homework", verdict="false")
def two_dimensional_positions(trial: Trial) -> Evidence:
    """A ViT encodes the 2-D position of a patch.

    Correction: It adds one learned vector per index, as for text; rows and columns are unknown to
        it. The vectors may come to reflect them in training (L6).
    Refutation: a table of a new model that rows and columns explain better than chance, or another
        output when patches and table are shuffled together
    """
    grid, shares, errors = 8, [], []
    config = replace(VIT, patch_size=2, layers=1, dim=32)
    model = trial.build(lambda: VisionTransformer(config))
    for _ in range(10):
        model, images = trial.build(lambda: VisionTransformer(config)), trial.normal(2, 1, 16, 16)
        shares.append(_row_column_share(model.positions[1:], grid))
        order, before = torch.randperm(grid**2, generator=trial.rng), model(images)
        other = deepcopy(model)
        other.positions.data[1:] = model.positions[1:][order]
        shuffled = unpatchify(patchify(images, 2)[:, order], 2, (grid, grid))
        errors.append((other(shuffled) - before).abs().max())
    places = sinusoidal(torch.arange(grid), 16).double()
    built = torch.cat([places.repeat_interleave(grid, 0), places.repeat(grid, 1)], -1)
    share, random_share = Measure.mean("new ViT", shares), 2 * (grid - 1) / (grid**2 - 1)
    planar = _row_column_share(built, grid)
    tables = {"new ViT": model.positions[1:], "built from row and column": built}
    maps = {name: similarity(x)[27].view(grid, grid) for name, x in tables.items()}
    return Evidence(
        holds=share.above(2 * random_share) or max(errors) > 1e-6,
        corrected=share.above(0.5 * random_share)
        and share.below(1.5 * random_share)
        and max(errors) < 1e-12
        and planar > 0.99,
        measures={
            "share of the table that rows and columns explain": {
                share.name: share,
                "by chance": random_share,
                "sinusoids of row and column": planar,
            },
            "change of a logit, patches and table shuffled together": max(errors),
        },
        chart=Maps(maps, "column", "row; cosine with patch (3, 3)"),
    )


@claim("L8", source="homework", verdict="true")
def class_token_gathers(trial: Trial) -> Evidence:
    """The class token gathers all patches; the head ignores the outputs of the patches.

    Refutation: a patch without effect on the logits, or a gradient at another output than the class
        token's
    """

    def draw() -> dict[str, Tensor]:
        model, images = _small_vit(trial), trial.normal(1, 1, 16, 16).requires_grad_()
        scores: list[Tensor] = []
        (output,) = outputs_of(model.encoder, lambda: scores.append(model(images)[0, 0]))
        pixels, tokens = torch.autograd.grad(scores, [images, output])
        effect = patchify(pixels[0], 4).norm(dim=-1)
        return {"patch": effect, "class": tokens[0, 0].norm(), "others": tokens[0, 1:].norm()}

    effect, itself, others = trial.repeat(10, draw).values()
    maps = {"mean of 10 models": effect.mean(0).view(4, 4)}
    return Evidence(
        holds=effect.min() > 1e-3 and itself.min() > 1e-3 and others.max() == 0,
        measures={
            "smallest gradient of a logit by a patch": effect.min(),
            "gradient by the encoder's class token, least": itself.min(),
            "gradient by the encoder's other outputs, largest": others.max(),
        },
        chart=Maps(maps, "column of patches", "row; gradient of a logit"),
    )


@claim("L9", source="homework", verdict="true")
def two_heads(trial: Trial) -> Evidence:
    """The head of a ViT is an MLP with one hidden layer in pre-training and one linear layer in
    fine-tuning.

    Refutation: a head of the other form, or one that reads something else than the encoder's class
        token
    Remark: It sits on the class token after the last norm, not on the output of attention.
    """
    heads = {"pre-training, MLP": "mlp", "fine-tuning, linear": "linear"}
    models = {name: _small_vit(trial, head=head) for name, head in heads.items()}
    images, scales = trial.normal(4, 1, 16, 16), torch.linspace(-3, 3, 13).double()
    curves, reads, attention = {}, {}, {}
    for name, model in models.items():
        after = _after_encoder(model)
        features = model.encode(images)[:, 0]
        reads[name] = (after(features) - model(images)).abs().max()
        last = model.get_submodule(f"encoder.blocks.{model.config.layers - 1}.self_attention")
        mixed = outputs_of(last, lambda model=model: model.encode(images))[0][:, 0]
        attention[name] = (after(mixed) - model(images)).abs().max()
        curves[name] = (after(scales[:, None] * features[0]) - after(0 * features[:1]))[:, 0]
    bends = {n: (y - y[-1] * scales / 3).abs().max() / y.abs().max() for n, y in curves.items()}
    states = [set(model.state_dict()) for model in models.values()]
    return Evidence(
        holds=max(reads.values()) < 1e-12
        and min(attention.values()) > 1e-3
        and bends["fine-tuning, linear"] < 1e-12
        and bends["pre-training, MLP"] > 0.01
        and states[0] ^ states[1] == {"pre_logits.weight", "pre_logits.bias"},
        measures={
            **{f"deviation from a straight line, {n}": x for n, x in bends.items()},
            "head on the encoder's class token: error": max(reads.values()),
            "head on the output of attention: error": min(attention.values()),
            "tensors that only one of the models has": len(states[0] ^ states[1]),
        },
        chart=Lines(
            scales,
            {n: y / y.abs().max() for n, y in curves.items()},
            "scale of the class token",
            "logit, largest is 1",
        ),
    )


def _small_vit(trial: Trial, **changes) -> VisionTransformer:
    """An untrained ViT of 4 × 4 patches, two layers of width 16."""
    return trial.build(lambda: VisionTransformer(replace(VIT, dim=16, **changes)))


def _shift_errors(
    layer: Callable[[Tensor], Tensor], images: Tensor, shifts: list[int], stride: int
) -> Tensor:
    """Largest difference of layer(shifted images) from the best whole shift of layer(images)."""
    before, errors = layer(images), []
    for shift in shifts:
        after = layer(images.roll(shift, -1))
        steps = {shift // stride, -(-shift // stride)}
        errors.append(min((after - before.roll(n, -1)).abs().max() for n in steps))
    return torch.stack(errors)


def _row_column_share(table: Tensor, grid: int) -> float:
    """Share of the variance of a table that a vector per row plus one per column explains."""
    x = (table - table.mean(0)).view(grid, grid, -1)
    explained = x.mean(0, keepdim=True) + x.mean(1, keepdim=True)
    return float(explained.square().sum() / x.square().sum())


def similarity(table: Tensor) -> Tensor:
    """Cosines of all pairs of rows, after their mean is taken off."""
    x = F.normalize(table - table.mean(0), dim=-1)
    return x @ x.mT


def _after_encoder(model: VisionTransformer) -> Callable[[Tensor], Tensor]:
    """The layers of the model that run after the encoder."""
    layers = [model.head] if model.pre_logits is None else [model.pre_logits, nn.Tanh(), model.head]
    return nn.Sequential(*layers)
