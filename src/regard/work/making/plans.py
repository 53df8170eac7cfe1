"""What an exercise of each family and level is made of: sizes to fill, values to pick from."""

from collections.abc import Mapping
from typing import Any, NamedTuple

Size = tuple[int, int]


class Plan(NamedTuple):
    """One level of a family: matrices to draw, numbers to pick, choices, and what is asked for.

    >>> Plan({"X": (2, 2)}).asks
    ('*',)
    """

    sizes: Mapping[str, Size] = {}
    picks: Mapping[str, tuple[Any, ...]] = {}  # a given, by one of these
    choices: Mapping[str, tuple[Any, ...]] = {}  # a choice of the family, by one of these
    asks: tuple[str, ...] = ("*",)  # names of steps, as patterns


def _weights(letters: str, size: Size) -> dict[str, Size]:
    return {f"W_{letter}": size for letter in letters}


def _cell(gates: str, hidden: int, inputs: int) -> dict[str, Size]:
    """W and U of each gate; a dot stands for the pair without an index."""
    names = ["" if gate == "." else f"_{gate}" for gate in gates]
    return {f"W{n}": (hidden, inputs) for n in names} | {f"U{n}": (hidden, hidden) for n in names}


_ATTENTION = ("Q", "K", "V", "S", "Z", "R", "A", "H")
_HEADS = ("Q_*", "K_*", "V_*", "S_*", "Z_*", "R_*", "A_*", "H_*", "C", "H", "Y", "O")
# rows whose variance is a square, so that a hand can take its root
_EVEN_2 = ([1, 3], [0, 4], [5, -1], [2, 0], [-3, 1])
_EVEN_4 = ([1, 1, 3, 3], [0, 4, 0, 4], [7, -1, 1, 1], [-3, 5, 3, 3], [2, 0, 0, 2], [4, 4, -2, -2])
_RNN, _GRU, _LSTM = (
    ("h_*",),
    ("z_*", "r_*", "g_*", "h_*"),
    ("i_*", "f_*", "o_*", "g_*", "c_*", "h_*"),
)
_BACK = ("h_*", "c_*", "J", "dh_*", "dc_*", "dW*", "dU*")
_LOOKING = ("p_*", "s_*", "α_*", "a_*", "h_*")
_BLOCK = ("A*", "O", "P_*", "m_*", "v_*", "LN_*", "FF")
_ORDERS = ([3, 1, 2], [2, 3, 1], [2, 1, 3], [3, 2, 1])
_SHUFFLED = ("H_1", "H_2", "PH", "D", "c_1", "c_2", "d")
_THREE = {"Q": (2, 2), "K": (3, 2), "V": (3, 2)}
_MOVED = {"scale": (1,), "index": (1, 2)}
_CHANGES = ("A", "H", "S_a", "A_a", "H_a", "dS", "dA", "dH")
_ONE = (-2, -1, "-1/2", "1/2", 1, 2)

PLANS: dict[str, tuple[Plan, Plan, Plan]] = {
    "attention": (
        Plan({"X": (2, 2)}, choices={"scale": (1,)}, asks=_ATTENTION),
        Plan({"X": (3, 2)} | _weights("QKV", (2, 2)), choices={"scale": (1,)}, asks=_ATTENTION),
        Plan(
            {"X": (3, 3)} | _weights("QKV", (3, 3)),
            choices={"mask": ("none", "causal"), "convention": ("rows", "columns")},
            asks=_ATTENTION,
        ),
    ),
    "cross": (
        Plan({"X": (1, 2), "Y": (2, 2)}, choices={"scale": (1,)}, asks=_ATTENTION),
        Plan(
            {"X": (2, 2), "Y": (2, 2)} | _weights("QKV", (2, 2)),
            choices={"scale": (1,)},
            asks=_ATTENTION,
        ),
        Plan({"X": (2, 2), "Y": (3, 2)} | _weights("QKV", (2, 2)), asks=_ATTENTION),
    ),
    "multi-head": (
        Plan(
            {"X": (2, 2)} | _weights("QKVO", (2, 2)),
            choices={"heads": (2,), "scale": (1,)},
            asks=_HEADS,
        ),
        Plan({"X": (2, 4)} | _weights("QKVO", (4, 4)), choices={"heads": (2,)}, asks=_HEADS),
        Plan(
            {"X": (3, 4)} | _weights("QKVO", (4, 4)),
            choices={"heads": (2,), "mask": ("causal",)},
            asks=_HEADS,
        ),
    ),
    "layer-norm": (
        Plan(picks={"X": _EVEN_2}, choices={"eps": (0,)}),
        Plan(picks={"X": _EVEN_4, "gamma": ([1, 1, 2, 1],)}, choices={"eps": (0,)}),
        Plan({"X": (2, 4)}, {"gamma": ([1, 2, 1, 1],), "beta": ([0, 1, 0, -1],)}),
    ),
    "feed-forward": (
        Plan({"X": (1, 2), "W_1": (2, 2), "W_2": (2, 2)}),
        Plan({"X": (2, 2), "W_1": (2, 3), "b_1": (1, 3), "W_2": (3, 2)}),
        Plan({"X": (2, 3), "W_1": (3, 4), "b_1": (1, 4), "W_2": (4, 3), "b_2": (1, 3)}),
    ),
    "encoder": (
        Plan({"X": (2, 2)} | _weights("QKVO12", (2, 2)), choices={"scale": (1,)}, asks=_BLOCK),
        Plan(
            {"X": (2, 4)} | _weights("QKVO", (4, 4)) | {"W_1": (4, 3), "W_2": (3, 4)},
            choices={"heads": (2,)},
            asks=_BLOCK,
        ),
        Plan(
            {"X": (3, 4)} | _weights("QKVO", (4, 4)) | {"W_1": (4, 3), "W_2": (3, 4)},
            choices={"heads": (2,), "norm": ("pre", "post")},
            asks=_BLOCK,
        ),
    ),
    "shuffle": (
        Plan({"X": (2, 2)}, {"order": ([2, 1],)}, {"scale": (1,)}, _SHUFFLED),
        Plan({"X": (3, 2)}, {"order": _ORDERS}, {"scale": (1,)}, _SHUFFLED),
        Plan({"X": (3, 2)}, {"order": _ORDERS}, {"mask": ("causal",)}, _SHUFFLED),
    ),
    "perturb": (
        Plan(_THREE, {"eps": ([1, 0], [0, 1])}, _MOVED | {"what": ("query",)}, _CHANGES),
        Plan(_THREE, {"eps": ([1, 0], [0, 1])}, _MOVED | {"what": ("key",)}, _CHANGES),
        Plan(_THREE, {"alpha": (2, 3)}, _MOVED | {"what": ("key",)}, _CHANGES),
    ),
    "positions": (
        Plan(picks={"p": (2, 3), "d": (2,)}, asks=("ω", "Θ", "PE")),
        Plan(picks={"p": (2, 3, 4), "d": (4,)}, asks=("ω", "Θ", "PE")),
        Plan(picks={"p": (2, 3), "d": (4,), "k": (1, 2)}),
    ),
    "counts": (
        Plan(picks={"d": (64, 128, 256), "h": (2, 4, 8)}),
        Plan(picks={"d": (512, 768), "h": (8,), "hidden": (2048, 3072)}),
        Plan(picks={"side": (224, 96), "P": (16, 8), "C": (3, 1)}),
    ),
    "moments": (
        Plan(picks={"mu": (0,), "sigma": (1, 2), "d": (16, 64)}, choices={"draws": (0,)}),
        Plan(picks={"mm": (3, 5, 9), "sigma": (1, 2), "d": (16, 64)}, choices={"draws": (0,)}),
        Plan(
            picks={"mu": ([1, 0, 2], [1, -1, 1]), "sigma": ("1/2", 2)},
            choices={"draws": (0,), "same": (True, False)},
        ),
    ),
    "rnn": (
        Plan(picks={"x": _ONE, "W": _ONE, "U": _ONE, "h": _ONE}, asks=_RNN),
        Plan({"x": (1, 2)}, {"W": _ONE, "U": _ONE, "h": (0, 1)}, asks=_RNN),
        Plan({"x": (2, 2)} | _cell(".", 2, 2), asks=_RNN),
    ),
    "gru": (
        Plan({"x": (1, 1)} | _cell("zr.", 1, 1), {"h": _ONE}, asks=_GRU),
        Plan({"x": (1, 2)} | _cell("zr.", 1, 1), {"h": _ONE}, asks=_GRU),
        Plan({"x": (2, 1)} | _cell("zr.", 2, 2), {"h": ([[1], [0]], [["1/2"], [-1]])}, asks=_GRU),
    ),
    "lstm": (
        Plan({"x": (1, 1)} | _cell("ifoc", 1, 1), {"h": _ONE, "c": _ONE}, asks=_LSTM),
        Plan({"x": (1, 2)} | _cell("ifoc", 1, 1), {"h": _ONE, "c": _ONE}, asks=_LSTM),
        Plan(
            {"x": (2, 1)} | _cell("ifoc", 2, 2),
            {"h": ([[1], [0]],), "c": ([[0], [1]],)},
            asks=_LSTM,
        ),
    ),
    "hybrid": (
        Plan({"x": (1, 2)}, {"W": (1, 2), "U": (1, -1)}, asks=_LOOKING),
        Plan({"x": (1, 3)}, {"W": (1, 2), "U": (1, -1)}, asks=_LOOKING),
        Plan({"x": (2, 2)} | _cell(".", 2, 2), choices={"score": ("dot", "scaled")}, asks=_LOOKING),
    ),
    "bptt": (
        Plan(
            {"x": (1, 2)}, {"W": _ONE, "U": _ONE, "target": (0, 1)}, {"cell": ("rnn",)}, asks=_BACK
        ),
        Plan(
            {"x": (2, 2)} | _cell(".", 2, 2), {"target": ([1, 0],)}, {"cell": ("rnn",)}, asks=_BACK
        ),
        Plan(
            {"x": (1, 2)} | _cell("ifoc", 1, 1), {"target": (0, 1)}, {"cell": ("lstm",)}, asks=_BACK
        ),
    ),
}
