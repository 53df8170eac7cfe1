"""Claims about masks: what they hide, streams, and how far a window reaches."""

import math

import torch
from torch import Tensor

from regard.claims.charts import Lines, Maps
from regard.claims.claim import Evidence, Trial, claim
from regard.claims.measurements import jacobian, to_tensor
from regard.decode.cache import KVCache
from regard.nn import Encoder
from regard.ops import Causal, Local, Mask, attention_weights
from regard.ops.masks import DenseMask
from regard.work import solve


@claim("G11", source="homework", verdict="false")
def causal_triangle(trial: Trial) -> Evidence:
    """With tokens as columns and H = VA, the causal weight matrix A is lower triangular.

    Correction: It is upper triangular there, as rows are keys; it is lower triangular with tokens
        as rows.
    Refutation: weights above the diagonal that are all 0 with tokens as columns
    """
    x, problem = trial.integers(5, 4, 2), {"family": "attention", "mask": "causal"}
    columns, rows = (
        to_tensor(solve(problem | {"convention": name, "given": {"X": tokens.tolist()}})["A"])
        for name, tokens in (("columns", x.mT), ("rows", x))
    )
    library = attention_weights(x.double(), x.double(), mask=Causal())
    maps = {"columns: A (key, query)": columns, "rows: A (query, key)": rows}
    return Evidence(
        holds=torch.equal(columns, columns.tril()),
        corrected=torch.equal(columns, columns.triu())
        and torch.equal(rows, rows.tril())
        and torch.allclose(rows, library),
        measures={
            "weight above the diagonal, tokens as columns": columns.triu(1).sum(),
            "weight above the diagonal, tokens as rows": rows.triu(1).sum(),
        },
        chart=Maps(maps, "column", "row"),
    )


@claim("G12", source="homework", verdict="true")
def causal_ignores_future(trial: Trial) -> Evidence:
    """With a causal mask, outputs do not depend on later inputs.

    Refutation: a derivative of an output by a later input that is not exactly 0
    """
    maps = {"causal": _dependence(trial, 2, Causal()), "no mask": _dependence(trial, 2, None)}
    later, past = {n: x.triu(1).max() for n, x in maps.items()}, maps["causal"].tril()
    return Evidence(
        holds=later["causal"] == 0 and past[torch.ones_like(past).tril() > 0].min() > 0,
        measures={"largest derivative by a later input": later},
        chart=Maps(maps, "input position", "output position"),
    )


@claim("G13", source="homework", verdict="true")
def streaming_equals_full(trial: Trial) -> Evidence:
    """Causal attention computed frame by frame gives the outputs of the whole sequence.

    Refutation: an output of the stream that differs from the one computed at once
    Remark: Each layer stores the keys and values of the past; without them the outputs differ.
    """
    encoder, x = trial.build(lambda: Encoder(2, 16, 4)), trial.normal(1, 40, 16)
    with torch.no_grad():
        full = encoder(x, mask=Causal())
        streamed, _ = _stream(encoder, x, Causal(), KVCache())
        forgetful = torch.cat([encoder(frame, mask=Causal()) for frame in x.split(1, 1)], 1)
    outputs = {"with a cache": streamed, "without": forgetful}
    errors = {name: (y - full).abs().amax((0, 2)) for name, y in outputs.items()}
    return Evidence(
        holds=errors["with a cache"].max() < 1e-10,
        measures={f"largest difference {name}": x.max() for name, x in errors.items()},
        chart=Lines(range(40), errors, "frame", "|stream − whole sequence|", log="y"),
    )


@claim("G14", source="homework", verdict="conditional")
def live_speech(trial: Trial) -> Evidence:
    """For live speech recognition, causal attention is what is needed, and it is enough.

    Condition: The left context is bounded too, or memory grows with the stream. Strict causality is
        not needed: a look-ahead of r frames per layer delays L layers by L · r frames.
    Refutation: a causal cache that stops growing without a window, or a delay other than L · r
    """
    encoder, x, width = trial.build(lambda: Encoder(2, 8, 2)), trial.normal(1, 96, 8), 16
    window = Causal() & Local(width - 1)
    with torch.no_grad():
        _, unbounded = _stream(encoder, x, Causal(), KVCache())
        streamed, bounded = _stream(encoder, x, window, KVCache(max_length=width - 1))
        error = (streamed - encoder(x, mask=window)).abs().max()
    sizes = [(layers, ahead) for layers in (1, 2, 3) for ahead in (0, 1, 2)]
    delays = {size: _delay(trial, *size) for size in sizes}
    enough, needed = unbounded[-1] < 48, delays[1, 1] >= 15  # 15: waits for the whole sequence
    delay_is_product = all(delays[size] == math.prod(size) for size in sizes)
    curves = {"causal": unbounded, "causal, window of 16": bounded}
    return Evidence(
        holds=enough and needed,
        holds_if=bounded[-1] < width and error < 1e-10 and delay_is_product,
        measures={
            "frames stored after 96, causal": unbounded[-1],
            "frames stored after 96, causal with a window of 16": bounded[-1],
            "difference of that stream from the whole sequence": error,
            "delay of 3 layers with a look-ahead of 2, in frames": delays[3, 2],
        },
        chart=Lines(range(1, 97), curves, "frames received", "frames stored per layer"),
    )


@claim("G16", source="homework", verdict="false")
def local_mask_reach(trial: Trial) -> Evidence:
    """A local mask keeps the direct access of attention between any two positions.

    Correction: A radius r connects n positions only over ⌈(n − 1)/r⌉ layers.
    Refutation: one layer that carries a signal from the first to the last of 64 positions with a
        radius of 4
    """
    n, radii = 64, [1, 2, 4, 8, 16, 32, 63]
    layers = [_layers_to_connect(Local(radius).dense(n, n)) for radius in radii]
    formula = [math.ceil((n - 1) / radius) for radius in radii]
    # the same in a real stack: 17 positions, radius 4, from the last to the first
    reach = [_dependence(trial, depth, Local(4), n=17)[0, -1].item() for depth in (3, 4)]
    curves = {"measured": layers, "⌈(n − 1)/r⌉": formula}
    return Evidence(
        holds=max(layers) == 1,
        corrected=layers == formula and reach[0] == 0 and reach[1] > 0,
        measures={
            "layers needed for 64 positions": {"radius 1": layers[0], "radius 4": layers[2]},
            "derivative across 17 positions, radius 4, 3 layers": reach[0],
            "derivative across 17 positions, radius 4, 4 layers": reach[1],
        },
        chart=Lines(radii, curves, "radius", "layers to connect 64 positions", log="xy"),
    )


def _dependence(trial: Trial, layers: int, mask: Mask | None, n: int = 6) -> Tensor:
    """Largest derivative of each output position by each input position of an encoder."""
    encoder, x = trial.build(lambda: Encoder(layers, 4, 2)), trial.normal(n, 4)
    return jacobian(lambda x: encoder(x[None], mask=mask)[0], x).abs().amax((1, 3))


def _stream(encoder: Encoder, x: Tensor, mask: Mask, cache: KVCache) -> tuple[Tensor, list[int]]:
    """Outputs frame by frame, and the number of frames stored after each."""
    outputs, stored = [], []
    for frame in x.split(1, 1):
        writer = cache.append(1)
        outputs.append(encoder(frame, mask=mask, offset=cache.length, cache=writer))
        cache = writer.new_cache()
        stored.append(cache.length)
    return torch.cat(outputs, 1), stored


def _delay(trial: Trial, layers: int, ahead: int, n: int = 16) -> float:
    """Frames after the current one that an output waits for, with a look-ahead in every layer."""
    band = DenseMask(Local(4).dense(n, n).tril(ahead))
    needed = _dependence(trial, layers, band, n)[0].nonzero().max()
    return float(needed)


def _layers_to_connect(allowed: Tensor) -> int:
    """Layers after which every position depends on every other."""
    step, reach, layers = allowed.double(), allowed.double(), 1
    while not reach.all():
        reach, layers = ((reach @ step) > 0).double(), layers + 1
    return layers
