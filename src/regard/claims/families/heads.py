"""Claims about multi-head attention: sizes, cost, patterns."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from regard.claims.charts import Bars, Lines
from regard.claims.claim import Evidence, Trial, claim
from regard.claims.families.convolution import fit_position_heads
from regard.claims.measurements import count_parameters
from regard.costs import cost
from regard.errors import RegardError
from regard.inspection import look
from regard.nn import MultiHeadAttention
from regard.ops import attend, attention_weights
from regard.work import solve


@claim("E1", source="exam", verdict="true")
def parameters_by_heads(trial: Trial) -> Evidence:
    """Query, key and value projections have 3d² weights, whatever the number of heads.

    Refutation: a count that changes with the number of heads
    Remark: The output projection adds d², and biases 4d.
    """
    heads, dims = [1, 2, 4, 8, 16], (64, 512)
    counts = {d: [_projection_weights(MultiHeadAttention(d, h)) for h in heads] for d in dims}
    curves = {f"d = {d}": x for d, x in counts.items()}
    return Evidence(
        holds=all(set(counts[d]) == {3 * d * d} for d in dims),
        measures={
            "weights, d = 512": {"1 head": counts[512][0], "16 heads": counts[512][-1]},
            "3d² at d = 512": 3 * 512**2,
            "all parameters, d = 64: 4d² + 4d": count_parameters(MultiHeadAttention(64, 8)),
        },
        chart=Lines(heads, curves, "heads", "query, key and value weights", log="y"),
    )


@claim("E2", source="homework", verdict="true")
def compute_by_heads(trial: Trial) -> Evidence:
    """Multi-head attention takes as much compute as one head of the full width.

    Refutation: multiply-adds that change with the number of heads
    Remark: It holds for the products, 4nd² + 2n²d. Weights that are stored grow: h maps of n².
    """
    heads, n, d = [1, 2, 4, 8], 32, 64
    x, products, stored = trial.normal(1, n, d), [], []
    for h in heads:
        layer = trial.build(lambda h=h: MultiHeadAttention(d, h))
        with FlopCounterMode(display=False) as counter:
            q, (k, v) = layer.project_query(x), layer.project_kv(x)
            y, _ = attend(q, k, v, backend="reference")
            layer.to_out(y.transpose(1, 2).flatten(2))
        products.append(counter.get_total_flops() // 2)
        stored.append(attention_weights(q, k).numel())
    expected = cost(MultiHeadAttention(d, 1), source=n).multiply_adds
    counts = {"multiply-adds": products, "attention weights": stored}
    curves = {name: [y / x[0] for y in x] for name, x in counts.items()}
    return Evidence(
        holds=set(products) == {expected},
        measures={
            "multiply-adds counted": {"1 head": products[0], "8 heads": products[-1]},
            "4nd² + 2n²d": expected,
            "weights of the maps, 8 heads to 1": stored[-1] / stored[0],
        },
        chart=Lines(heads, curves, "heads", "relative to one head"),
    )


@claim("E3", source="exam", verdict="conditional")
def different_patterns(trial: Trial) -> Evidence:
    """Several heads give several different attention patterns.

    Condition: Their weights differ. Heads with equal weights are one head whose output projections
        are added.
    Refutation: different patterns of equal heads, or equal patterns of different ones
    """
    x = trial.normal(1, 8, 16)

    def draw() -> dict[str, Tensor]:
        layer = trial.build(lambda: MultiHeadAttention(16, 4))
        apart = _pattern_distances(layer, x).min()
        for part in (layer.to_q, layer.to_k, layer.to_v):
            part.weight.data = part.weight[:4].repeat(4, 1)
        equal = _pattern_distances(layer, x).max()
        merged = (layer(x) - _merge_heads(trial, layer)(x)).abs().max()
        return {"apart": apart, "equal": equal, "merged": merged}

    apart, equal, merged = trial.repeat(20, draw).values()
    bars = {"different weights": apart.mean(), "equal weights": equal.max()}
    return Evidence(
        holds=min(apart.min(), equal.max()) > 1e-3,
        holds_if=apart.min() > 1e-3 and equal.max() < 1e-12 and merged.max() < 1e-10,
        measures={
            "smallest distance of two patterns, different weights": apart,
            "largest distance of two patterns, equal weights": equal.max(),
            "difference of equal heads from one head": merged.max(),
        },
        chart=Bars(bars, "distance of patterns"),
    )


@claim("E4", source="exam", verdict="true")
def concatenate_and_mix(trial: Trial) -> Evidence:
    """The outputs of the heads are concatenated and then mixed by the output projection.

    Refutation: a difference of the layer from W_O applied to its concatenated heads
    Remark: That is the same as adding each head times its rows of W_O. It is not a sum of heads
        with one number each.
    """
    names = ("concatenate, then W_O", "Σ head · its rows of W_O", "best Σ number · head")

    def draw() -> dict[str, Tensor]:
        layer, x = trial.build(lambda: MultiHeadAttention(16, 4)), trial.normal(1, 8, 16)
        with look(layer) as sight:
            y = layer(x)[0]
        heads = sight.sites[0].out[0]  # head, token, 4
        rows = layer.to_out.weight.mT.unflatten(0, (4, 4))
        joined = heads.transpose(0, 1).flatten(1) @ layer.to_out.weight.mT
        wide = F.pad(heads, (0, 12)).flatten(1).mT  # numbers in front of whole heads
        scalars = wide @ torch.linalg.lstsq(wide, y.flatten()[:, None]).solution
        sums = zip(names, (joined, (heads @ rows).sum(0), scalars), strict=True)
        return {name: (out.reshape(8, 16) - y).norm() / y.norm() for name, out in sums}

    errors = trial.repeat(20, draw)
    worst = {name: x.max() for name, x in errors.items()}
    return Evidence(
        holds=max(worst[names[0]], worst[names[1]]) < 1e-10 and errors[names[2]].min() > 0.1,
        measures={"largest relative difference": worst},
    )


@claim("E5", source="exam", verdict="conditional")
def one_head_one_relation(trial: Trial) -> Evidence:
    """One head can serve one relation only.

    Condition: Its values do not tell where they come from. If they carry a tag of their source, one
        head returns both neighbours of a token.
    Refutation: one head without tags that returns both neighbours, or one with tags that cannot
    """
    x, counts = trial.normal(120, 4), {"1 head": 1, "2 heads": 2, "3 heads": 3}
    # the tag: a token's features are in the slot of its position modulo 4
    slots = F.one_hot(torch.arange(120) % 4, 4).double()
    tagged = (slots[:, :, None] * x[:, None]).flatten(1)
    targets = {
        "no tag": (x, torch.cat([x.roll(1, 0), x.roll(-1, 0)], -1)),
        "tagged values": (tagged, tagged.roll(1, 0) + tagged.roll(-1, 0)),
    }
    errors = {
        name: [fit_position_heads(trial, *data, heads) for heads in counts.values()]
        for name, data in targets.items()
    }
    untagged, with_tags = errors.values()
    bars = {head: {k: x[n] for k, x in errors.items()} for n, head in enumerate(counts)}
    return Evidence(
        holds=min(untagged[0], with_tags[0]) > 0.4,
        holds_if=untagged[0] > 0.4 and max(untagged[1:]) < 1e-4 and with_tags[0] < 1e-4,
        measures={"relative squared error": bars},
        chart=Bars(bars, "relative squared error, both neighbours"),
    )


@claim("E6", source="common belief", verdict="true")
def score_rank(trial: Trial) -> Evidence:
    """The score matrix of a head has at most the rank of its width d/h.

    Refutation: a rank above the width of the head
    Remark: More heads of one model mean lower ranks. The weights after the softmax usually have
        full rank again.
    """
    widths, n, d = [1, 2, 4, 8, 16, 32], 20, 32
    ranks = {"scores": [], "weights": []}
    for width in widths:
        layer, x = trial.build(lambda w=width: MultiHeadAttention(d, d // w)), trial.normal(1, n, d)
        with look(layer) as sight:
            layer(x)
        site = sight.sites[0]
        maps = site.q[0] @ site.k[0].mT, site.window()[0]
        for row, x in zip(ranks.values(), maps, strict=True):
            row.append(torch.linalg.matrix_rank(x, rtol=1e-9).max().item())
    scores, weights = ranks.values()
    return Evidence(
        holds=scores == [min(n, width) for width in widths],
        measures={
            "rank of 20 × 20 scores": {"width 4": scores[2], "width 32": scores[-1]},
            "rank of the weights, width 4": weights[2],
        },
        chart=Lines(widths, ranks, "width of a head", "largest rank, 20 tokens", log="x"),
    )


@claim("E7", source="homework", verdict="false")
def projection_shapes(trial: Trial) -> Evidence:
    """With tokens as columns, a head's projection is a d × d/h matrix W in the product WQ.

    Correction: It is d/h × d there. A d × d/h matrix belongs to tokens as rows, as QW.
    Refutation: a product WQ that exists for W of d × d/h and more than one head
    """
    sizes = [(4, 2, 3), (6, 2, 4), (6, 3, 5)]
    fits = {
        f"{convention}, {shape}": sum(_projects(trial, *x, convention, tall) for x in sizes) / 3
        for convention in ("columns", "rows")
        for shape, tall in (("d × d/h", True), ("d/h × d", False))
    }
    return Evidence(
        holds=fits["columns, d × d/h"] == 1,
        corrected=fits["columns, d/h × d"] == fits["rows, d × d/h"] == 1
        and fits["rows, d/h × d"] == fits["columns, d × d/h"] == 0,
        measures={"share of sizes that fit": fits},
    )


def _projection_weights(layer: MultiHeadAttention) -> int:
    return sum(part.weight.numel() for part in (layer.to_q, layer.to_k, layer.to_v))


def _pattern_distances(layer: MultiHeadAttention, x: Tensor) -> Tensor:
    """Distance of the attention maps of each pair of heads."""
    with look(layer) as sight:
        layer(x)
    return torch.pdist(sight.sites[0].window()[0].flatten(1))


def _merge_heads(trial: Trial, layer: MultiHeadAttention) -> MultiHeadAttention:
    """One head with the weights of the first, and the sum of all output projections."""
    merged = trial.build(lambda: MultiHeadAttention(16, 1, head_dim=4))
    for name in ("to_q", "to_k", "to_v"):
        getattr(merged, name).weight.data = getattr(layer, name).weight[:4]
    merged.to_out.weight.data = layer.to_out.weight.unflatten(1, (4, 4)).sum(1)
    return merged


def _projects(trial: Trial, d: int, heads: int, n: int, convention: str, tall: bool) -> bool:
    """Whether projections of d × d/h (tall) or d/h × d fit tokens in this convention."""
    shape = (d, d // heads) if tall else (d // heads, d)
    weights = {
        f"W_{name}_{head}": trial.integers(5, *shape).tolist()
        for name in "QKV"
        for head in range(1, heads + 1)
    }
    tokens = trial.integers(3, d, n) if convention == "columns" else trial.integers(3, n, d)
    problem = {"family": "multi-head", "convention": convention, "scale": "inf"}
    try:
        solve(problem | {"given": {"X": tokens.tolist(), **weights}})
    except RegardError:
        return False
    return True
