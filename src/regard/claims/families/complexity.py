"""Claims about parallelism and cost."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import regard as rg
from regard.claims.charts import Lines
from regard.claims.claim import Evidence, Trial, claim
from regard.claims.measurements import graph_depth
from regard.costs import break_even_length, generation_cost, layer_cost
from regard.ops import RNNWeights, recur
from regard.ops.intercept import intercepting

WIDTH = 512


@claim("X1", source="exam", verdict="conditional")
def sequential_operations(trial: Trial) -> Evidence:
    """A recurrent layer takes O(T) sequential operations, attention O(1).

    Condition: Whole matrix products are counted: the sums inside them have depth log n.
    Refutation: a chain of matrix operations of attention that grows with T
    """
    lengths = [4, 16, 64]
    rnn = rg.nn.Recurrent(8, 8, kind="rnn")
    attention = rg.nn.MultiHeadAttention(8, 2)
    inputs = [trial.normal(1, n, 8).float() for n in lengths]
    recurrent = [graph_depth(rnn(x, backend="reference")[0][:, -1]) for x in inputs]
    products = [graph_depth(attention(x)) for x in inputs]
    # softmax and weights · values sum over n keys, by a tree of additions
    trees = [2 * math.ceil(math.log2(n)) for n in lengths]
    sums = [depth + tree for depth, tree in zip(products, trees, strict=True)]
    depths = {"recurrent": recurrent, "attention": products, "attention, with sums": sums}
    return Evidence(
        holds=len(set(sums)) == 1,
        holds_if=len(set(products)) == 1 and recurrent[-1] > 8 * recurrent[0],
        measures={f"{name}, T = 64": d[-1] for name, d in depths.items()},
        chart=Lines(lengths, depths, "T", "dependent operations", log="xy"),
    )


@claim("X2", source="exam", verdict="false")
def parallel_inference(trial: Trial) -> Evidence:
    """Attention runs in parallel over positions at inference too.

    Correction: When text is generated each token needs the one before: N tokens take N passes.
    Refutation: a generation in which the number of dependent passes does not grow with N
    """
    model = rg.models.LanguageModel(rg.models.language_tiny(vocab=50, layers=2)).eval()
    passes = {n: _passes(model, n) for n in (4, 8, 16, 32)}
    tokens = torch.randint(0, 50, (1, 32), generator=trial.rng)
    scoring = _count(model, lambda: model(tokens))
    curves = {"generate": list(passes.values()), "score given tokens": [scoring] * 4}
    return Evidence(
        holds=passes[32] <= 2 * passes[4],
        corrected=all(n - 1 <= p <= n + 1 for n, p in passes.items()) and scoring == 1,
        measures={f"passes to generate {n}": p for n, p in passes.items()}
        | {"passes to score 32 given tokens": scoring},
        chart=Lines(list(passes), curves, "tokens N", "dependent passes"),
    )


@claim("X3", source="exam", verdict="conditional")
def recurrence_not_parallel(trial: Trial) -> Evidence:
    """Recurrent networks cannot be computed in parallel over time.

    Condition: Their update is nonlinear: a linear recurrence is a scan of log₂ T parallel steps.
    Refutation: a linear scan that differs from the loop, or a nonlinear chain that is short
    """
    decay, inputs = trial.uniform(64, 8), trial.normal(64, 8)
    states, h = [], torch.zeros(8, dtype=torch.float64)
    for a, b in zip(decay, inputs, strict=True):
        h = a * h + b
        states.append(h)
    a, scanned, shift, steps = decay, inputs, 1, 0
    while shift < len(a):  # by doubling (Hillis and Steele 1986)
        a_before = torch.cat([torch.ones_like(a[:shift]), a[:-shift]])
        before = torch.cat([torch.zeros_like(a[:shift]), scanned[:-shift]])
        a, scanned, shift, steps = a * a_before, a * before + scanned, 2 * shift, steps + 1
    error = (scanned - torch.stack(states)).abs().max()
    weights = RNNWeights(trial.normal(8, 8) / 4, trial.normal(8, 8).requires_grad_())
    nonlinear = graph_depth(recur(trial.normal(64, 8), weights, backend="reference").out[-1])
    return Evidence(
        holds=error > 1e-10,
        holds_if=error < 1e-12 and steps == 6 and nonlinear > 64,
        measures={
            "dependent operations": {"linear, scan": steps, "tanh RNN": nonlinear},
            "largest difference from the loop": error,
        },
    )


@claim("X4", source="homework", verdict="true")
def path_length(trial: Trial) -> Evidence:
    """Between two tokens the path has O(n) steps in a recurrent network and O(1) in attention.

    Remark: Without a mask; a local mask of radius r needs ⌈(n − 1) / r⌉ layers.
    Refutation: more than one hop in full attention, or fewer than n − 1 in a recurrence
    """
    lengths = [4, 16, 64]
    hops = {
        "attention": [_hops(torch.ones(n, n, dtype=torch.bool)) for n in lengths],
        "recurrent": [_hops(torch.eye(n).roll(1, 0).tril().bool()) for n in lengths],
        "local, radius 4": [_hops(rg.ops.masks.Local(4).dense(n, n)) for n in lengths],
    }
    return Evidence(
        holds=hops["attention"] == [1, 1, 1] and hops["recurrent"] == [n - 1 for n in lengths],
        measures={f"{name}, n = 64": h[-1] for name, h in hops.items()},
        chart=Lines(lengths, hops, "n", "hops from first to last", log="xy"),
    )


@claim("X5", source="homework", verdict="conditional")
def cost_per_layer(trial: Trial) -> Evidence:
    """Per layer a recurrent network costs n d² and attention n² d.

    Condition: The projections of attention, 4 n d², are left out.
    Refutation: counted products that do not follow these laws after the projections are removed
    """
    lengths = [64, 256, 1024, 4096]
    layers = rg.nn.MultiHeadAttention(WIDTH, 8), rg.nn.Recurrent(WIDTH, WIDTH, kind="rnn")
    attention, rnn = ([rg.cost(x, source=n).multiply_adds for n in lengths] for x in layers)
    maps = [a - 4 * n * WIDTH**2 for a, n in zip(attention, lengths, strict=True)]
    constant = {n: a / (n * n * WIDTH) for a, n in zip(attention, lengths, strict=True)}
    curves = {"attention": attention, "without projections": maps, "RNN": rnn}
    return Evidence(
        holds=max(constant.values()) < 1.1 * min(constant.values()),
        holds_if=maps == [2 * n * n * WIDTH for n in lengths]
        and rnn == [2 * n * WIDTH**2 for n in lengths],
        measures={f"cost / (n² d) at n = {n}": c for n, c in constant.items()},
        chart=Lines(lengths, curves, "n, at d = 512", "multiply-adds", log="xy"),
    )


@claim("X6", source="homework", verdict="conditional")
def attention_is_cheaper(trial: Trial) -> Evidence:
    """A layer of attention needs less computation than a recurrent one.

    Condition: n < 2 d against an LSTM, n < d against a GRU; never against a plain RNN.
    Refutation: crossings at other lengths
    """
    lengths = [2**k for k in range(5, 13)]
    ratios = {
        kind: {n: layer_cost("attention", n, WIDTH) / layer_cost(kind, n, WIDTH) for n in lengths}
        for kind in ("rnn", "gru", "lstm")
    }
    crossings = {kind: break_even_length(kind, WIDTH) for kind in ratios}
    agree = all(
        (ratio < 1) == (n < (crossings[kind] or 0))
        for kind in ratios
        for n, ratio in ratios[kind].items()
    )
    curves = {f"/ {kind.upper()}": list(x.values()) for kind, x in ratios.items()}
    return Evidence(
        holds=max(max(x) for x in curves.values()) < 1,
        holds_if=agree and crossings == {"rnn": None, "gru": WIDTH, "lstm": 2 * WIDTH},
        measures={
            "attention / GRU at n = 512": ratios["gru"][512],
            "attention / LSTM at n = 1024": ratios["lstm"][1024],
            "smallest attention / RNN": min(curves["/ RNN"]),
        },
        chart=Lines(lengths, curves, "n, at d = 512", "cost of attention /", log="xy"),
    )


@claim("X7", source="homework", verdict="conditional")
def quadratic_term_is_small(trial: Trial) -> Evidence:
    """Sequences are typically shorter than the model is wide, so the quadratic term is small.

    Condition: n is a small fraction of d; other courses call the opposite typical.
    Refutation: a share of the quadratic term that does not depend on n / d
    """
    lengths = [64, 256, 512, 1024, 4096]
    layer = rg.nn.MultiHeadAttention(WIDTH, 8)
    counted = {n: rg.cost(layer, source=n).multiply_adds / (4 * n * WIDTH**2) - 1 for n in lengths}
    ratios = list(counted.values())
    law = all(math.isclose(x, n / (2 * WIDTH), rel_tol=1e-9) for n, x in counted.items())
    return Evidence(
        holds=max(ratios) < 0.1,
        holds_if=ratios[0] < 0.1 and ratios[-1] > 1 and law,
        measures={f"quadratic term / projections, n = {n}": x for n, x in counted.items()},
        chart=Lines(
            lengths, {"quadratic / projections": ratios}, "n, at d = 512", "ratio", log="xy"
        ),
    )


@claim("X8", source="exercises", verdict="conditional")
def encoder_cost(trial: Trial) -> Evidence:
    """Self-attention of an encoder costs O(M² k + M k²) = O(M² k).

    Condition: M ≥ k, so that the second term is no larger than the first.
    Refutation: a cost / (M² k) that is bounded for M < k, or unbounded for M ≥ k
    """
    lengths = [8, 64, 512, 1024, 4096]
    ratios = [layer_cost("attention", n, WIDTH) / (n * n * WIDTH) for n in lengths]
    large = max(r for n, r in zip(lengths, ratios, strict=True) if n >= WIDTH)
    return Evidence(
        holds=max(ratios) <= 6,
        holds_if=large <= 6 and ratios[0] > 100,
        measures={"cost / (M² k) at M = 8": ratios[0], "largest for M ≥ k": large},
        chart=Lines(lengths, {"cost / (M² k)": ratios}, "M, at k = 512", log="xy"),
    )


@claim("X9", source="exercises", verdict="true")
def cross_attention_cost(trial: Trial) -> Evidence:
    """Cross-attention costs O(M N k) where M and N exceed k.

    Remark: As an order of growth; literally larger than the rest only if M N / (M + N) > k.
    Refutation: a cost / (M N k) that grows without bound for M, N ≥ k
    """
    k, sizes = 64, [64, 128, 512, 2048]
    config = rg.models.translator_tiny(vocab=9, dim=k, heads=4, decoder_layers=1)
    layer = rg.models.Translator(config)
    ratios = {
        f"N = {n}": [_cross_cost(layer, m, n) / (m * n * k) for m in sizes] for n in (64, 2048)
    }
    largest = max(max(r) for r in ratios.values())
    return Evidence(
        holds=largest <= 6.01,
        measures={
            "largest cost / (M N k) for M, N ≥ k": largest,
            "at M = N = 8, k = 64": _cross_cost(layer, 8, 8) / (8 * 8 * k),
        },
        chart=Lines(sizes, ratios, "M, at k = 64", "cost / (M N k)", log="x"),
    )


@claim("X10", source="exercises", verdict="true")
def decoder_cost(trial: Trial) -> Evidence:
    """Self-attention of a decoder costs O(N² k) for N tokens.

    Remark: With a KV cache; recomputing every step costs a factor that grows with N.
    Refutation: a cost with a cache that grows faster than N² k + N k²
    """
    lengths, k = [16, 64, 256, 1024], 64
    cached = max(generation_cost(n, k) / (n * n * k + n * k * k) for n in lengths)
    waste = {n: generation_cost(n, k, cached=False) / generation_cost(n, k) for n in lengths}
    curves = {"without cache / with": list(waste.values())}
    return Evidence(
        holds=cached <= 4 and waste[1024] > 100,
        measures={"largest cost / (N² k + N k²) with a cache": cached}
        | {f"without / with, N = {n}": w for n, w in waste.items()},
        chart=Lines(lengths, curves, "N, at k = 64", "ratio", log="xy"),
    )


@claim("X11", source="homework", verdict="conditional")
def long_inputs(trial: Trial) -> Evidence:
    """Transformers handle long inputs well.

    Condition: n² attention weights per head are affordable, or never stored.
    Refutation: memory of stored maps that does not grow with n², or of the fused form that does
    """
    lengths, heads = [128, 512, 2048], 4
    stored, fused = [], []
    for n in lengths:
        q = trial.normal(heads, n, 16).float()
        out, lse = rg.attend(q, q, q)
        stored.append(rg.ops.attention_weights(q, q).nbytes)
        fused.append(out.nbytes + lse.nbytes)
    maps, outputs = (math.log(y[-1] / y[0], lengths[-1] / lengths[0]) for y in (stored, fused))
    curves = {"maps": stored, "output and lse": fused}
    return Evidence(
        holds=maps < 1.1,
        holds_if=abs(maps - 2) < 0.01 and abs(outputs - 1) < 0.01,
        measures={
            "power of n of stored maps": maps,
            "of output and log-sum-exp": outputs,
            "maps of 4 heads at 100,000 tokens, GB": heads * 100_000**2 * 4 / 1e9,
        },
        chart=Lines(lengths, curves, "n", "bytes", log="xy"),
    )


def _passes(model: rg.models.LanguageModel, count: int) -> int:
    stepper, first = rg.decode.make_stepper(model), torch.tensor([[3]])
    options: dict[str, Any] = {"end": -1, "max_new_tokens": count}
    return _count(
        model, lambda: rg.decode.greedy(stepper, stepper.start(first), first[:, -1], **options)
    )


def _count(model: rg.models.LanguageModel, run: Callable[[], object]) -> int:
    """Passes through the layers while a function runs: attention calls per layer."""
    calls = 0

    def count(call: Any, proceed: Any) -> Any:
        nonlocal calls
        calls += 1
        return proceed(call)

    with intercepting(count), torch.no_grad():
        run()
    return calls // model.config.layers


def _hops(reads: Tensor) -> int:
    """Layers until the last token depends on the first, if each reads what the mask allows."""
    reached, layers = torch.arange(len(reads)) == 0, 0
    while not reached[-1]:
        reached, layers = reached | (reads & reached).any(-1), layers + 1
    return layers


def _cross_cost(model: rg.models.Translator, source: int, target: int) -> int:
    parts = rg.cost(model, source=source, target=target).parts
    return sum(part.multiply_adds for part in parts if "cross" in part.name)
