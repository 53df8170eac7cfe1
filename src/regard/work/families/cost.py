"""Multiply-adds, parameters and tokens: of attention, term by term, and of other layers."""

import re
from collections.abc import Mapping
from typing import Any

import sympy

from regard.errors import WorkError
from regard.work.families.registry import declared_steps, family
from regard.work.rules import RULES
from regard.work.rules.rule import M, Matrix, Rule, rule
from regard.work.solution import Solution, SolutionBuilder

COUNT_FORMULAS = (
    *("4Mk²", "2M²k", "8Mk²", "4Nk²", "2N²k", "2Nk²", "2Mk²", "2MNk", "8Nk²", "NkV", "N²k + Nk"),
    *("4Nk² + N²k + Nk", "4nd²", "2n²d", "2nd²", "6nd²", "8nd²", "n²d²"),
    *("4d²", "2d²", "6d²", "8d²"),
)


def size_symbols(text: str) -> list[str]:
    """Sizes in a formula, in order of appearance.

    >>> size_symbols("2MNk")
    ['M', 'N', 'k']
    """
    return list(dict.fromkeys(re.findall(r"[A-Za-z]", text)))


def _count_rule(text: str) -> Rule:
    letters = size_symbols(text)
    formula = re.sub("[A-Za-z]", lambda letter: f"{{{letters.index(letter[0])}}}", text)
    terms = formula.split(" + ")
    bare = [re.sub(r"^\d+", "", term) for term in terms]
    mistakes = {"multiply and add were counted as two": " + ".join(terms + terms)}
    if bare != terms:
        mistakes["the factors in front were left out"] = " + ".join(bare)
    if len(terms) > 1:
        for n in range(len(terms)):
            mistakes[f"term {n + 1} was left out"] = " + ".join(terms[:n] + terms[n + 1 :])
    return rule(formula, mistakes)


def _count_without_cache(n: Matrix, k: Matrix) -> Matrix:
    """The sum over t = 1 … N of 4tk² + 2t²k."""
    count, size = n[0], k[0]
    projections = 2 * count * (count + 1) * size**2
    pairs = count * (count + 1) * (2 * count + 1) * size / sympy.Integer(3)
    return M([[projections + pairs]])


RULES |= {
    **{f"count {text}": _count_rule(text) for text in COUNT_FORMULAS},
    "count without KV cache": rule(
        "Σ_(t=1)^{0} (4t{1}² + 2t²{1})",
        run=_count_without_cache,
        words="Σ over t = 1 … {0} of 4t{1}² + 2t²{1}",
    ),
}


@family("counts")
def solve_counts(given: Mapping[str, Any]) -> Solution:
    """Count parameters of attention and feed-forward layers, and tokens of an image.

    d, h:            d_k = d / h,   3 d² weights for Q, K and V whatever h is, d² for W_O
    with d_ff:       2 d d_ff weights and d_ff + d biases of the feed-forward
    side, P, C:      N = (side / P)² patches of P² C numbers, N + 1 tokens

    >>> solve_counts({"d": 512, "h": 8})["d_k"]
    Matrix([[64]])
    >>> solve_counts({"side": 224, "P": 16, "C": 3})["tokens"]
    Matrix([[197]])
    """
    builder = _sizes_builder("counts", given)
    sizes = set(builder.given)
    if {"d", "h"} <= sizes:
        _add_exact_quotient(builder, "d_k", "d", "h", "the width of one head")
        builder.add_steps(*declared_steps("counts", "heads"))
    if {"d", "d_ff"} <= sizes:
        builder.add_steps(*declared_steps("counts", "feed_forward"))
    if {"side", "P"} <= sizes:
        _add_patches(builder)
    if not builder.steps:
        names = ", ".join(sizes) or "nothing"
        raise WorkError(f"given: needs d and h, d and d_ff, or side and P, got {names}")
    return builder.build()


@family("filters")
def solve_filters(given: Mapping[str, Any]) -> Solution:
    """Count the weights of h heads beside those of F filters of size k × k over C channels.

    heads:    4 d² whatever h is, each head of width d / h;   filters:  F k² C, each its own

    >>> solve_filters({"d": 64, "h": 4, "k": 3, "F": 16, "C": 3})["w_F"]
    Matrix([[432]])
    """
    builder = _sizes_builder("filters", given)
    _add_exact_quotient(builder, "d_k", "d", "h", "the width of one head")
    builder.add_steps(*declared_steps("counts", "heads"), *declared_steps("filters", "filters"))
    builder.add_remark(
        "Heads and filters both look for several patterns side by side, and their outputs are "
        "concatenated. A filter has fixed weights for fixed places; the weights of a head follow "
        "from the tokens. More filters are more weights; more heads are narrower ones."
    )
    return builder.build()


def _sizes_builder(name: str, given: Mapping[str, Any]) -> SolutionBuilder:
    """A builder of sizes, each one whole number from 1 on."""
    builder = SolutionBuilder(name, dict(given))
    for size, value in builder.given.items():
        if value.shape != (1, 1) or not value[0, 0].is_Integer or value[0, 0] < 1:
            raise WorkError(f"{size}: needs one whole number from 1 on, got {value.tolist()}")
    return builder


def _add_exact_quotient(
    builder: SolutionBuilder, name: str, numerator: str, denominator: str, title: str
) -> str:
    """Add a quotient that must be an integer."""
    builder.add_step(name, "quotient", numerator, denominator, title=title)
    if not builder.values[name][0, 0].is_Integer:
        a, b = (int(builder.values[size][0, 0]) for size in (numerator, denominator))
        divisors = ", ".join(str(n) for n in range(1, a + 1) if a % n == 0)
        raise WorkError(
            f"{denominator}: needs a divisor of {numerator} = {a}, got {b}; try one of {divisors}"
        )
    return name


def _add_patches(builder: SolutionBuilder) -> None:
    _add_exact_quotient(builder, "g", "side", "P", "patches along one side")
    builder.add_steps(*declared_steps("counts", "patches"))
    vector = "p"
    if "C" in builder.values:
        vector = builder.add_step("v", "elementwise product", "p", "C", title="values per patch")
    if "d" in builder.values:
        builder.add_steps(*declared_steps("counts", "tokens", vector=vector))


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
    for part, pairs, rest, condition in (
        ("Encoder", "ES", ("EP",), f"M > 2k; M = {m}, 2k = {2 * k}"),
        ("Cross-attention", "CS", ("CQ", "CK"), both),
        ("Decoder", "DS", ("DP",), f"N > 2k; N = {n}, 2k = {2 * k}"),
    ):
        ratio = builder.number(pairs) / sum(builder.number(name) for name in rest)
        winner = "pairs dominate" if ratio > 1 else "projections dominate"
        winner = "both are equal" if ratio == 1 else winner
        builder.add_remark(
            f"{part}: pairs / projections = {ratio:.3g}, {winner} "
            f"(pairs dominate where {condition})."
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
