"""What attention costs in multiply-adds: term by term, which one wins, and beside other layers."""

from collections.abc import Mapping
from typing import Any

from regard.errors import WorkError
from regard.work.exact.evaluate import to_float
from regard.work.families.registry import check_given, family
from regard.work.rules.cost import size_symbols
from regard.work.solution import Solution, SolutionBuilder

LAYER_MACS = {"RNN": "2nd²", "GRU": "6nd²", "LSTM": "8nd²", "FF": "8nd²", "MLP": "n²d²"}
LAYER_PARAMETERS = {
    "att": "4d²",
    "RNN": "2d²",
    "GRU": "6d²",
    "LSTM": "8d²",
    "FF": "8d²",
    "MLP": "n²d²",
}


@family("cost", given="M N k L V n d")
def solve_cost(given: Mapping[str, Any]) -> Solution:
    """Count the multiply-adds of a translation, or of one layer beside other kinds of layers.

    M, N, k:  encoder 4Mk² + 2M²k + 8Mk²,  decoder 4Nk² + 2N²k + 2Nk² + 2Mk² + 2MNk + 8Nk²
    n, d:     attention 4nd² + 2n²d,  RNN 2nd²,  GRU 6nd²,  LSTM 8nd²,  an MLP over all n²d²

    M and N are the tokens of source and target, k the width; with L layers and V words if wanted.
    Sizes may be symbols: then the formulas come out.

    >>> solve_cost({"n": 512, "d": 512})["att"]
    Matrix([[805306368]])
    >>> solve_cost({"M": 30, "N": 30, "k": 512})["e"]
    Matrix([[95293440]])
    """
    check_given("cost", given)
    work = SolutionBuilder("cost", {k: v for k, v in given.items() if v is not None})
    for name, value in work.given.items():
        told = value.free_symbols or (value.shape == (1, 1) and value[0, 0].is_Integer)
        if not told or (not value.free_symbols and value[0, 0] < 1):
            raise WorkError(f"{name}: needs one whole number from 1 on, got {value.tolist()}")
    known = set(work.given)
    numbers = not any(value.free_symbols for value in work.given.values())
    if {"n", "d"} == known:
        _layers(work)
        if numbers:
            _layers_remarks(work)
    elif {"M", "N", "k"} <= known <= {"M", "N", "k", "L", "V"}:
        _translation(work)
        if numbers:
            _translation_remarks(work)
    else:
        some = ", ".join(work.given) or "nothing"
        raise WorkError(f"given: needs n and d; or M, N and k, with L and V or not; got {some}")
    return work.build()


def _count(work: SolutionBuilder, name: str, text: str, says: str) -> str:
    return work.add_step(name, f"count {text}", *size_symbols(text), title=says)


def _translation(work: SolutionBuilder) -> None:
    encoder = [
        _count(work, "EP", "4Mk²", "the encoder: queries, keys, values and outputs"),
        _count(work, "ES", "2M²k", "the encoder: scores and mixtures, every pair"),
        _count(work, "EF", "8Mk²", "the encoder: a feed-forward of 4k"),
    ]
    decoder = [
        _count(work, "DP", "4Nk²", "the decoder looking at itself: projections"),
        _count(work, "DS", "2N²k", "the decoder looking at itself: every pair"),
        _count(work, "CQ", "2Nk²", "looking at the source: queries and outputs"),
        _count(work, "CK", "2Mk²", "looking at the source: its keys and values"),
        _count(work, "CS", "2MNk", "looking at the source: every pair"),
        _count(work, "DF", "8Nk²", "the decoder: a feed-forward of 4k"),
    ]
    work.add_step("e", "sum of 3", *encoder, title="one layer of the encoder")
    work.add_step("d", "sum of 6", *decoder, title="one layer of the decoder")
    first, second = "e", "d"
    if "L" in work.values:
        first = work.add_step("eL", "scale", "e", "L", title="all layers of the encoder")
        second = work.add_step("dL", "scale", "d", "L", title="all layers of the decoder")
    if "V" in work.values:
        _count(work, "W", "NkV", "the words: a score for each of V")
        second = work.add_step("dW", "sum of 2", second, "W", title="the decoder and its words")
    work.add_step("t", "sum of 2", first, second, title="the whole translation")
    says = "a second language from the same source, as a share of the whole: the decoder alone"
    work.add_step("u", "divided by", second, "t", title=says)
    work.add_step("p", "sum of 2", "DS", "CS", title="the pairs of the decoder: O(N²k + MNk)")
    work.add_step("q", "divided by", "p", "d", title="as a share of one layer of the decoder")
    _count(work, "DC", "N²k + Nk", "the pairs that a causal mask allows")
    _count(work, "wc", "4Nk² + N²k + Nk", "writing word by word, keys and values kept")
    work.add_step(
        "wa", "count without KV cache", "N", "k", title="the same with all done again each time"
    )
    work.add_step("wr", "divided by", "wa", "wc", title="how many times dearer that is")


def _size(work: SolutionBuilder, name: str) -> float:
    return to_float(work.values[name][0])


def _translation_remarks(work: SolutionBuilder) -> None:
    m, n, k = (int(work.values[name][0]) for name in "MNk")
    both = f"MN/(M + N) > k; it is {m * n / (m + n):.4g}, k = {k}"
    for who, pairs, rest, rule in (
        ("Encoder", "ES", ("EP",), f"M > 2k; M = {m}, 2k = {2 * k}"),
        ("Cross-attention", "CS", ("CQ", "CK"), both),
        ("Decoder", "DS", ("DP",), f"N > 2k; N = {n}, 2k = {2 * k}"),
    ):
        ratio = _size(work, pairs) / sum(_size(work, name) for name in rest)
        wins = (
            "the pairs win" if ratio > 1 else "both are equal" if ratio == 1 else "projections win"
        )
        work.add_remark(
            f"{who}: pairs / projections = {ratio:.3g}, {wins} (pairs win where {rule})."
        )
    work.add_remark(
        f"A second language costs {_size(work, 'u'):.1%} of a translation, if the encoder is "
        f"shared. O(N²k + MNk), its pairs, are {_size(work, 'q'):.1%} of a layer of the decoder; "
        "the rest are projections and feed-forward."
    )
    work.add_remark(
        f"Writing word by word with all done again each time costs {_size(work, 'wr'):.3g} times "
        "as much as with kept keys and values."
    )


def _layers(work: SolutionBuilder) -> None:
    _count(work, "P", "4nd²", "attention: queries, keys, values and outputs")
    _count(work, "S", "2n²d", "attention: scores and mixtures, every pair")
    work.add_step("att", "sum of 2", "P", "S", title="attention")
    told = {
        "RNN": "an RNN: W and U at every step",
        "GRU": "a GRU: three times that",
        "LSTM": "an LSTM: four times that",
        "FF": "a feed-forward of 4d, token by token",
        "MLP": "one layer from all n d numbers to as many",
    }
    for name, text in LAYER_MACS.items():
        _count(work, name, text, told[name])
    for name, text in LAYER_PARAMETERS.items():
        _count(work, f"w_{name}", text, f"the weights of {name}")
    for name in ("RNN", "GRU", "LSTM", "MLP"):
        work.add_step(f"r_{name}", "divided by", "att", name, title=f"attention against {name}")


def _layers_remarks(work: SolutionBuilder) -> None:
    n, d = int(work.values["n"][0]), int(work.values["d"][0])
    ratios = ", ".join(f"{one} {_size(work, f'r_{one}'):.3g}" for one in ("RNN", "GRU", "LSTM"))
    work.add_remark(
        f"Attention costs so many times as much: {ratios}. It is the cheaper one for n < d = {d} "
        f"against a GRU, for n < 2d = {2 * d} against an LSTM, and never against a plain RNN."
    )
    more = "more" if n > 2 * d else "less" if n < 2 * d else "as much"
    work.add_remark(
        f"Its pairs (2n²d) cost {more} than its projections (4nd²): n = {n}, 2d = {2 * d}."
    )
    work.add_remark(
        f"One after another: a recurrent layer takes {n} steps that wait for each other, attention "
        f"and MLP 1. From the first token to the last it is {n - 1} steps for a recurrent layer, 1 "
        "for the others. Kept at once: n² weights for attention, d numbers for a recurrent state."
    )
    work.add_remark(
        f"An MLP over the whole sequence takes one length only: its n²d² = "
        f"{int(work.values['w_MLP'][0])} weights are for n = {n}; the others serve any length, and "
        "treat each place alike."
    )
