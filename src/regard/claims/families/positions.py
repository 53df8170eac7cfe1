"""Claims about position and order: permutations, sinusoids, relative positions."""

import math

import torch
from torch import Tensor

from regard.claims.charts import Bars, Lines, Maps
from regard.claims.claim import Evidence, Trial, claim
from regard.nn import ALiBiBias, BucketBias, Encoder, RelativeKeyBias, ToeplitzBias, TokenEmbedding
from regard.ops import Causal, Padding, frequencies, sinusoidal, sinusoidal_shift


@claim("F1", source="exam", verdict="false")
def permutation_invariance(trial: Trial) -> Evidence:
    """Self-attention is permutation invariant.

    Correction: It is equivariant: permuted inputs give permuted outputs. Only a symmetric pool, or
        a class token, makes the result invariant.
    Refutation: outputs that stay in place when the inputs are permuted
    """
    names = ("f(Px) − f(x)", "f(Px) − P f(x)", "mean pool", "class token")

    def draw() -> dict[str, Tensor]:
        encoder, x = trial.build(lambda: Encoder(2, 16, 4)), trial.normal(1, 8, 16)
        cycle = trial.uniform(7).argsort()  # of all tokens but 0, which stays
        order = torch.cat([torch.zeros(1).long(), 1 + cycle.roll(1)[cycle.argsort()]])
        y, moved = encoder(x)[0], encoder(x[:, order])[0]
        pairs = (y[1:], moved[1:]), (y[order], moved), (y.mean(0), moved.mean(0)), (y[0], moved[0])
        return {name: (a - b).abs().max() for name, (a, b) in zip(names, pairs, strict=True)}

    changes = trial.repeat(20, draw)
    largest = {name: x.max() for name, x in changes.items()}
    return Evidence(
        holds=largest[names[0]] < 1e-10,
        corrected=changes[names[0]].min() > 0.01
        and all(largest[name] < 1e-10 for name in names[1:]),
        measures={"largest change": largest},
    )


@claim("F2", source="exam", verdict="conditional")
def cat_and_dog(trial: Trial) -> Evidence:
    """Without positions, 'cat chased dog' and 'dog chased cat' get the same vectors.

    Condition: Vectors are matched word by word, not slot by slot, and there is no causal mask.
    Refutation: a word whose vector differs between the two sentences without a mask, or the same
        vectors under a causal mask
    """
    embed = trial.build(lambda: TokenEmbedding(3, 16, positions="none"))
    placed = trial.build(lambda: TokenEmbedding(3, 16))
    encoder = trial.build(lambda: Encoder(2, 16, 4))
    first, second, cases = torch.tensor([[0, 1, 2]]), torch.tensor([[2, 1, 0]]), {}
    for name, layer, mask in (
        ("no positions", embed, None),
        ("sinusoidal", placed, None),
        ("causal mask", embed, Causal()),
    ):
        a, b = (encoder(layer(words), mask=mask)[0] for words in (first, second))
        pairs = {"same word": (a, b.flip(0)), "same slot": (a, b)}
        cases[name] = {k: (x - y).norm(dim=-1).max() for k, (x, y) in pairs.items()}
    same_word = {name: distances["same word"] for name, distances in cases.items()}
    slot = cases["no positions"]["same slot"]
    return Evidence(
        holds=max(slot, same_word["causal mask"]) < 1e-10,
        holds_if=same_word["no positions"] < 1e-10 and min(slot, same_word["sinusoidal"]) > 1e-3,
        measures={"largest distance": cases},
        chart=Bars(cases, "largest distance of vectors"),
    )


@claim("F4", source="common belief", verdict="conditional")
def causal_order(trial: Trial) -> Evidence:
    """A causal mask alone lets a model know the order of its tokens, without positions.

    Condition: There are at least two layers. In one layer the last token sees a set.
    Refutation: one layer whose last output changes when its prefix is shuffled, or two whose output
        does not
    """

    def change(depth: int) -> Tensor:
        encoder = trial.build(lambda: Encoder(depth, 16, 4))
        x = trial.normal(1, 8, 16)
        shuffled = x[:, [6, 5, 4, 3, 2, 1, 0, 7]]
        a, b = (encoder(tokens, mask=Causal())[0, -1] for tokens in (x, shuffled))
        return (a - b).norm()

    changes = [torch.stack([change(depth) for _ in range(10)]) for depth in (1, 2, 3, 4)]
    names, means = ["1 layer", "2 layers", "3 layers", "4 layers"], [x.mean() for x in changes]
    return Evidence(
        holds=all(x.min() > 1e-3 for x in changes),
        holds_if=changes[0].max() < 1e-10 and all(x.min() > 1e-3 for x in changes[1:]),
        measures={"change of the last output": dict(zip(names, changes, strict=True))},
        chart=Bars(dict(zip(names, means, strict=True)), "change of the last output"),
    )


@claim("F5", source="exam", verdict="true")
def codes_differ(trial: Trial) -> Evidence:
    """Sinusoidal encodings give every position a code of its own.

    Refutation: two of 2,000 positions with the same code
    Remark: How far apart codes are depends on the width: 6e-5 at d = 2, above 1 at d = 64.
    """
    widths = [2, 4, 8, 16, 64]
    smallest = {d: torch.pdist(sinusoidal(torch.arange(2000), d)).min() for d in widths}
    curves = {"smallest distance of two codes": list(smallest.values())}
    return Evidence(
        holds=min(smallest.values()) > 1e-6,
        measures={f"smallest distance of 2,000 codes, d = {d}": x for d, x in smallest.items()},
        chart=Lines(widths, curves, "width d", log="y"),
    )


@claim("F6", source="exam", verdict="true")
def codes_bounded(trial: Trial) -> Evidence:
    """Sinusoidal encodings stay between −1 and 1, and their norm is the same at every position.

    Refutation: an entry beyond 1, or a norm other than √(d/2)
    """
    positions = trial.integers(100_000, 2000)
    spread, largest = [], []
    for d in (4, 16, 64, 256):
        codes = sinusoidal(positions, d)
        spread.append((codes.norm(dim=-1) - math.sqrt(d / 2)).abs().max())
        largest.append(codes.abs().max())
    code = sinusoidal(torch.arange(60), 64)
    curves = {"norm, d = 64": code.norm(dim=-1), "feature 0": code[:, 0], "feature 8": code[:, 8]}
    return Evidence(
        holds=max(largest) <= 1 and max(spread) < 1e-9,
        measures={
            "largest entry": max(largest),
            "largest difference of a norm from √(d/2)": max(spread),
        },
        chart=Lines(range(60), curves, "position", "value"),
    )


@claim("F7", source="exam", verdict="true")
def shift_is_linear(trial: Trial) -> Evidence:
    """Shifting a sinusoidal encoding by k positions is one linear map, whatever the position.

    Refutation: a residual of the rotation above rounding, for any shift up to 64
    Remark: A rotation of each pair of features by an angle of k times its frequency.
    """
    shifts, at = [1, 2, 4, 8, 16, 32, 64], torch.arange(200)
    table = trial.normal(264, 32)  # codes without structure, for comparison
    residuals = {"sinusoidal": [], "random codes, best matrix": []}
    for k in shifts:
        rotated = sinusoidal(at, 32) @ sinusoidal_shift(k, 32).mT
        residuals["sinusoidal"].append((rotated - sinusoidal(at + k, 32)).abs().max())
        fit = torch.linalg.lstsq(table[at], table[at + k]).solution
        residuals["random codes, best matrix"].append((table[at] @ fit - table[at + k]).abs().max())
    return Evidence(
        holds=max(residuals["sinusoidal"]) < 1e-10,
        measures={"largest residual": {n: max(x) for n, x in residuals.items()}},
        chart=Lines(shifts, residuals, "shift k", "|R PE(p) − PE(p + k)|", log="xy"),
    )


@claim("F8", source="exam", verdict="true")
def products_by_distance(trial: Trial) -> Evidence:
    """The dot product of two sinusoidal encodings depends on their distance alone.

    Refutation: two pairs at one distance with different products
    Remark: It does not fall steadily with the distance. After query and key projections, as a model
        uses them, it depends on the positions too.
    """
    codes = sinusoidal(torch.arange(64), 64)
    q, k = (codes @ trial.normal(64, 64) / 8 for _ in range(2))
    grams = {"PE(p) · PE(q)": codes @ codes.mT, "after projections": q @ k.mT}
    errors = {name: _toeplitz_error(gram) for name, gram in grams.items()}
    rises = grams["PE(p) · PE(q)"][0].diff().gt(0).sum()
    return Evidence(
        holds=errors["PE(p) · PE(q)"] < 1e-9,
        measures={
            "largest spread at one distance": errors,
            "steps of 63 at which the product rises": rises,
        },
        chart=Maps(grams, "position q", "position p"),
    )


@claim("F12", source="homework", verdict="true")
def relative_shift(trial: Trial) -> Evidence:
    """A relative position bias is shift invariant.

    Refutation: outputs that change when the whole sequence is moved to later positions
    Remark: Checked for Toeplitz, T5, ALiBi and relative-key biases and for rotary positions, with
        sinusoidal positions, which do change, for comparison.
    """
    biases = {
        "Toeplitz": lambda: ToeplitzBias(2, radius=4),
        "T5 buckets": lambda: BucketBias(2, buckets=8),
        "ALiBi": lambda: ALiBiBias(2),
        "relative keys": lambda: RelativeKeyBias(4, radius=4),
    }
    changes = {}
    for name, make in biases.items():
        bias = trial.build(make)
        for table in bias.parameters():
            table.data = trial.normal(*table.shape)
        encoder = trial.build(lambda bias=bias: Encoder(2, 8, 2, relative=bias))
        changes[name] = _shift_change(trial, encoder)
    changes["rotary"] = _shift_change(trial, trial.build(lambda: Encoder(2, 8, 2, rope_theta=1e4)))
    largest = max(changes.values())
    changes["sinusoidal"] = _shift_change(trial, trial.build(lambda: Encoder(2, 8, 2)), codes=True)
    return Evidence(holds=largest < 1e-10, measures={"largest change after a shift by 5": changes})


@claim("F13", source="exercises", verdict="false")
def index_is_pair(trial: Trial) -> Evidence:
    """In the formula sin(p / 10000^(2i/d)), i is the index of the feature.

    Correction: i is the index of a pair: features 2i and 2i + 1 share a frequency, i = 0 … d/2 − 1.
    Refutation: encodings that equal the formula with i as the index of the feature
    """
    d, p = 32, trial.integers(1000, 50)
    feature = torch.arange(d)
    speeds, errors = {}, {}
    for name, i in {"i = pair": feature // 2, "i = feature": feature}.items():
        speeds[name] = 10000.0 ** (-2 * i.double() / d)
        angles = p[:, None] * speeds[name]
        codes = torch.where(feature % 2 == 0, angles.sin(), angles.cos())
        errors[name] = (codes - sinusoidal(p, d)).abs().max()
    return Evidence(
        holds=errors["i = feature"] < 1e-9,
        corrected=errors["i = pair"] < 1e-9 and len(frequencies(d)) == d // 2,
        measures={"largest difference": errors},
        chart=Lines(feature, speeds, "feature", "frequency", log="y"),
    )


def _toeplitz_error(matrix: Tensor) -> Tensor:
    """Largest spread of a diagonal."""
    diagonals = (matrix.diagonal(k) for k in range(1 - len(matrix), len(matrix)))
    return torch.stack([x.max() - x.min() for x in diagonals]).max()


def _shift_change(trial: Trial, encoder: Encoder, *, codes: bool = False) -> Tensor:
    """Largest change of the outputs when 5 masked tokens come before the sequence."""
    x, before = trial.normal(1, 9, 8), trial.normal(1, 5, 8)
    moved = torch.cat([before, x], 1)
    if codes:
        x, moved = (y + sinusoidal(torch.arange(y.shape[1]), 8) for y in (x, moved))
    mask = Padding(torch.tensor([14]), torch.tensor([5]))
    return (encoder(moved, mask=mask)[:, 5:] - encoder(x)).abs().max()
