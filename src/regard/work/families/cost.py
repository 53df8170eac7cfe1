"""Multiply-adds of attention, term by term, compared with other layers."""

from collections.abc import Mapping
from typing import Any

from regard.errors import WorkError
from regard.work.families.registry import family
from regard.work.rules.cost import size_symbols
from regard.work.solution import Solution, SolutionBuilder

LAYER_MACS = {
    "RNN": ("2nd²", "an RNN: W and U at every step"),
    "GRU": ("6nd²", "a GRU: three times that"),
    "LSTM": ("8nd²", "an LSTM: four times that"),
    "FF": ("8nd²", "a feed-forward of width 4d, per token"),
    "MLP": ("n²d²", "one dense layer over all n d features"),
}
LAYER_PARAMETERS = {"att": "4d²", "RNN": "2d²", "GRU": "6d²"}
LAYER_PARAMETERS |= {"LSTM": "8d²", "FF": "8d²", "MLP": "n²d²"}


@family("cost")
def solve_cost(given: Mapping[str, Any]) -> Solution:
    """Count the multiply-adds of an encoder-decoder, or of attention compared with other layers.

    M, N, k:  encoder 4Mk² + 2M²k + 8Mk²,  decoder 4Nk² + 2N²k + 2Nk² + 2Mk² + 2MNk + 8Nk²
    n, d:     attention 4nd² + 2n²d,  RNN 2nd²,  GRU 6nd²,  LSTM 8nd²,  MLP over all tokens n²d²

    Given: source and target length M and N, width k; optionally L layers and vocabulary size V.
    Sizes may be symbols.

    >>> solve_cost({"n": 512, "d": 512})["att"]
    Matrix([[805306368]])
    >>> solve_cost({"M": 30, "N": 30, "k": 512})["e"]
    Matrix([[95293440]])
    """
    builder = SolutionBuilder("cost", dict(given))
    for name, value in builder.given.items():
        is_valid = value.free_symbols or (value.shape == (1, 1) and value[0, 0].is_Integer)
        if not is_valid or (not value.free_symbols and value[0, 0] < 1):
            raise WorkError(f"{name}: needs one whole number from 1 on, got {value.tolist()}")
    sizes = set(builder.given)
    if {"n", "d"} == sizes:
        _layers(builder)
        add_remarks = _layers_remarks
    elif {"M", "N", "k"} <= sizes <= {"M", "N", "k", "L", "V"}:
        _translation(builder)
        add_remarks = _translation_remarks
    else:
        names = ", ".join(builder.given) or "nothing"
        raise WorkError(f"given: needs n and d; or M, N and k, with L and V or not; got {names}")
    if not builder.has_symbols:
        add_remarks(builder)
    return builder.build()


def _count(builder: SolutionBuilder, name: str, formula: str, title: str) -> str:
    return builder.add_step(name, f"count {formula}", *size_symbols(formula), title=title)


def _translation(builder: SolutionBuilder) -> None:
    encoder = [
        _count(builder, "EP", "4Mk²", "the encoder: queries, keys, values and outputs"),
        _count(builder, "ES", "2M²k", "the encoder: scores and weighted means, every pair"),
        _count(builder, "EF", "8Mk²", "the encoder: feed-forward of width 4k"),
    ]
    decoder = [
        _count(builder, "DP", "4Nk²", "decoder self-attention: projections"),
        _count(builder, "DS", "2N²k", "decoder self-attention: every pair"),
        _count(builder, "CQ", "2Nk²", "cross-attention: queries and outputs"),
        _count(builder, "CK", "2Mk²", "cross-attention: keys and values"),
        _count(builder, "CS", "2MNk", "cross-attention: every pair"),
        _count(builder, "DF", "8Nk²", "the decoder: feed-forward of width 4k"),
    ]
    builder.add_step("e", "sum of 3", *encoder, title="one layer of the encoder")
    builder.add_step("d", "sum of 6", *decoder, title="one layer of the decoder")
    encoder_total, decoder_total = "e", "d"
    if "L" in builder.values:
        encoder_total, decoder_total = builder.add_steps(
            ("eL", "scale", "e L", "all layers of the encoder"),
            ("dL", "scale", "d L", "all layers of the decoder"),
        )
    if "V" in builder.values:
        _count(builder, "W", "NkV", "the output layer: V logits per token")
        title = "the decoder with the output layer"
        decoder_total = builder.add_step("dW", "sum of 2", decoder_total, "W", title=title)
    alone = "the decoder alone, as a fraction of the whole: the cost of a second target language"
    builder.add_steps(
        ("t", "sum of 2", f"{encoder_total} {decoder_total}", "the whole translation"),
        ("u", "divided by", f"{decoder_total} t", alone),
        ("p", "sum of 2", "DS CS", "the pairs of the decoder: O(N²k + MNk)"),
        ("q", "divided by", "p d", "as a fraction of one decoder layer"),
    )
    _count(builder, "DC", "N²k + Nk", "the pairs that a causal mask allows")
    _count(builder, "wc", "4Nk² + N²k + Nk", "decoding token by token with a KV cache")
    builder.add_steps(
        ("wa", "count without KV cache", "N k", "decoding without a KV cache"),
        ("wr", "divided by", "wa wc", "how many times more that is"),
    )


def _translation_remarks(builder: SolutionBuilder) -> None:
    m, n, k = (int(builder.values[name][0]) for name in "MNk")
    both = f"MN/(M + N) > k; it is {m * n / (m + n):.4g}, k = {k}"
    for part, pairs, rest, rule in (
        ("Encoder", "ES", ("EP",), f"M > 2k; M = {m}, 2k = {2 * k}"),
        ("Cross-attention", "CS", ("CQ", "CK"), both),
        ("Decoder", "DS", ("DP",), f"N > 2k; N = {n}, 2k = {2 * k}"),
    ):
        ratio = builder.number(pairs) / sum(builder.number(name) for name in rest)
        winner = "pairs dominate" if ratio > 1 else "projections dominate"
        winner = "both are equal" if ratio == 1 else winner
        builder.add_remark(
            f"{part}: pairs / projections = {ratio:.3g}, {winner} (pairs dominate where {rule})."
        )
    builder.add_remark(
        f"A second target language costs {builder.number('u'):.1%} of a translation if the encoder "
        f"output is shared. O(N²k + MNk), its pairs, are {builder.number('q'):.1%} of a decoder "
        "layer; the rest are projections and feed-forward."
    )
    builder.add_remark(
        f"Decoding without a KV cache costs {builder.number('wr'):.3g} times as much as with one."
    )


def _layers(builder: SolutionBuilder) -> None:
    _count(builder, "P", "4nd²", "attention: queries, keys, values and outputs")
    _count(builder, "S", "2n²d", "attention: scores and weighted means, every pair")
    builder.add_step("att", "sum of 2", "P", "S", title="attention")
    for name, (formula, title) in LAYER_MACS.items():
        _count(builder, name, formula, title)
    for name, formula in LAYER_PARAMETERS.items():
        _count(builder, f"w_{name}", formula, f"the weights of {name}")
    for name in ("RNN", "GRU", "LSTM", "MLP"):
        builder.add_step(f"r_{name}", "divided by", "att", name, title=f"attention against {name}")


def _layers_remarks(builder: SolutionBuilder) -> None:
    n, d = int(builder.values["n"][0]), int(builder.values["d"][0])
    ratios = ", ".join(
        f"{layer} {builder.number(f'r_{layer}'):.3g}" for layer in ("RNN", "GRU", "LSTM")
    )
    builder.add_remark(
        f"Attention costs, relative to each: {ratios}. It is cheaper for n < d = {d} "
        f"against a GRU, for n < 2d = {2 * d} against an LSTM, and never against a plain RNN."
    )
    comparison = "more than" if n > 2 * d else "less than" if n < 2 * d else "as much as"
    builder.add_remark(
        f"Its pairs (2n²d) cost {comparison} its projections (4nd²): n = {n}, 2d = {2 * d}."
    )
    builder.add_remark(
        f"Sequential steps: {n} for a recurrent layer, 1 for attention "
        f"and MLP. Path from the first token to the last: {n - 1} steps for a recurrent layer, 1 "
        "for the others. Memory: n² weights for attention, d numbers for a recurrent state."
    )
    builder.add_remark(
        f"An MLP over the whole sequence has a fixed length: its n²d² = "
        f"{int(builder.values['w_MLP'][0])} weights are for n = {n}; the others handle any length "
        "and share weights over positions."
    )
