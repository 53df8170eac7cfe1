"""What an exercise of each family and level is made of: sizes to fill, values to pick from."""

from collections.abc import Mapping
from typing import Any, NamedTuple

MatrixShape = tuple[int, int]


class ExerciseTemplate(NamedTuple):
    """One level of a family: matrices to draw, numbers to pick, choices, and what is asked for.

    >>> ExerciseTemplate({"X": (2, 2)}).questions
    ('*',)
    """

    shapes: Mapping[str, MatrixShape] = {}
    value_choices: Mapping[str, tuple[Any, ...]] = {}  # a given, by one of these
    option_choices: Mapping[str, tuple[Any, ...]] = {}  # a choice of the family, by one of these
    questions: tuple[str, ...] = ("*",)  # names of steps, as patterns


def _weights(letters: str, size: MatrixShape) -> dict[str, MatrixShape]:
    return {f"W_{letter}": size for letter in letters}


def _cell(gates: str, hidden: int, inputs: int) -> dict[str, MatrixShape]:
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

EXERCISE_TEMPLATES: dict[str, tuple[ExerciseTemplate, ExerciseTemplate, ExerciseTemplate]] = {
    "attention": (
        ExerciseTemplate({"X": (2, 2)}, option_choices={"scale": (1,)}, questions=_ATTENTION),
        ExerciseTemplate(
            {"X": (3, 2)} | _weights("QKV", (2, 2)),
            option_choices={"scale": (1,)},
            questions=_ATTENTION,
        ),
        ExerciseTemplate(
            {"X": (3, 3)} | _weights("QKV", (3, 3)),
            option_choices={"mask": ("none", "causal"), "convention": ("rows", "columns")},
            questions=_ATTENTION,
        ),
    ),
    "cross-attention": (
        ExerciseTemplate(
            {"X": (1, 2), "Y": (2, 2)}, option_choices={"scale": (1,)}, questions=_ATTENTION
        ),
        ExerciseTemplate(
            {"X": (2, 2), "Y": (2, 2)} | _weights("QKV", (2, 2)),
            option_choices={"scale": (1,)},
            questions=_ATTENTION,
        ),
        ExerciseTemplate(
            {"X": (2, 2), "Y": (3, 2)} | _weights("QKV", (2, 2)), questions=_ATTENTION
        ),
    ),
    "multi-head": (
        ExerciseTemplate(
            {"X": (2, 2)} | _weights("QKVO", (2, 2)),
            option_choices={"heads": (2,), "scale": (1,)},
            questions=_HEADS,
        ),
        ExerciseTemplate(
            {"X": (2, 4)} | _weights("QKVO", (4, 4)),
            option_choices={"heads": (2,)},
            questions=_HEADS,
        ),
        ExerciseTemplate(
            {"X": (3, 4)} | _weights("QKVO", (4, 4)),
            option_choices={"heads": (2,), "mask": ("causal",)},
            questions=_HEADS,
        ),
    ),
    "layer-norm": (
        ExerciseTemplate(value_choices={"X": _EVEN_2}, option_choices={"eps": (0,)}),
        ExerciseTemplate(
            value_choices={"X": _EVEN_4, "gamma": ([1, 1, 2, 1],)}, option_choices={"eps": (0,)}
        ),
        ExerciseTemplate({"X": (2, 4)}, {"gamma": ([1, 2, 1, 1],), "beta": ([0, 1, 0, -1],)}),
    ),
    "feed-forward": (
        ExerciseTemplate({"X": (1, 2), "W_1": (2, 2), "W_2": (2, 2)}),
        ExerciseTemplate({"X": (2, 2), "W_1": (2, 3), "b_1": (1, 3), "W_2": (3, 2)}),
        ExerciseTemplate({"X": (2, 3), "W_1": (3, 4), "b_1": (1, 4), "W_2": (4, 3), "b_2": (1, 3)}),
    ),
    "encoder": (
        ExerciseTemplate(
            {"X": (2, 2)} | _weights("QKVO12", (2, 2)),
            option_choices={"scale": (1,)},
            questions=_BLOCK,
        ),
        ExerciseTemplate(
            {"X": (2, 4)} | _weights("QKVO", (4, 4)) | {"W_1": (4, 3), "W_2": (3, 4)},
            option_choices={"heads": (2,)},
            questions=_BLOCK,
        ),
        ExerciseTemplate(
            {"X": (3, 4)} | _weights("QKVO", (4, 4)) | {"W_1": (4, 3), "W_2": (3, 4)},
            option_choices={"heads": (2,), "norm": ("pre", "post")},
            questions=_BLOCK,
        ),
    ),
    "shuffle": (
        ExerciseTemplate({"X": (2, 2)}, {"order": ([2, 1],)}, {"scale": (1,)}, _SHUFFLED),
        ExerciseTemplate({"X": (3, 2)}, {"order": _ORDERS}, {"scale": (1,)}, _SHUFFLED),
        ExerciseTemplate({"X": (3, 2)}, {"order": _ORDERS}, {"mask": ("causal",)}, _SHUFFLED),
    ),
    "perturb": (
        ExerciseTemplate(
            _THREE, {"eps": ([1, 0], [0, 1])}, _MOVED | {"target": ("query",)}, _CHANGES
        ),
        ExerciseTemplate(
            _THREE, {"eps": ([1, 0], [0, 1])}, _MOVED | {"target": ("key",)}, _CHANGES
        ),
        ExerciseTemplate(_THREE, {"alpha": (2, 3)}, _MOVED | {"target": ("key",)}, _CHANGES),
    ),
    "positions": (
        ExerciseTemplate(value_choices={"p": (2, 3), "d": (2,)}, questions=("ω", "Θ", "PE")),
        ExerciseTemplate(value_choices={"p": (2, 3, 4), "d": (4,)}, questions=("ω", "Θ", "PE")),
        ExerciseTemplate(value_choices={"p": (2, 3), "d": (4,), "k": (1, 2)}),
    ),
    "counts": (
        ExerciseTemplate(value_choices={"d": (64, 128, 256), "h": (2, 4, 8)}),
        ExerciseTemplate(value_choices={"d": (512, 768), "h": (8,), "d_ff": (2048, 3072)}),
        ExerciseTemplate(value_choices={"side": (224, 96), "P": (16, 8), "C": (3, 1)}),
    ),
    "moments": (
        ExerciseTemplate(
            value_choices={"mu": (0,), "sigma": (1, 2), "d": (16, 64)},
            option_choices={"samples": (0,)},
        ),
        ExerciseTemplate(
            value_choices={"mm": (3, 5, 9), "sigma": (1, 2), "d": (16, 64)},
            option_choices={"samples": (0,)},
        ),
        ExerciseTemplate(
            value_choices={"mu": ([1, 0, 2], [1, -1, 1]), "sigma": ("1/2", 2)},
            option_choices={"samples": (0,), "q_is_k": (True, False)},
        ),
    ),
    "rnn": (
        ExerciseTemplate(
            value_choices={"x": _ONE, "W": _ONE, "U": _ONE, "h": _ONE}, questions=_RNN
        ),
        ExerciseTemplate({"x": (1, 2)}, {"W": _ONE, "U": _ONE, "h": (0, 1)}, questions=_RNN),
        ExerciseTemplate({"x": (2, 2)} | _cell(".", 2, 2), questions=_RNN),
    ),
    "gru": (
        ExerciseTemplate({"x": (1, 1)} | _cell("zr.", 1, 1), {"h": _ONE}, questions=_GRU),
        ExerciseTemplate({"x": (1, 2)} | _cell("zr.", 1, 1), {"h": _ONE}, questions=_GRU),
        ExerciseTemplate(
            {"x": (2, 1)} | _cell("zr.", 2, 2), {"h": ([[1], [0]], [["1/2"], [-1]])}, questions=_GRU
        ),
    ),
    "lstm": (
        ExerciseTemplate(
            {"x": (1, 1)} | _cell("ifoc", 1, 1), {"h": _ONE, "c": _ONE}, questions=_LSTM
        ),
        ExerciseTemplate(
            {"x": (1, 2)} | _cell("ifoc", 1, 1), {"h": _ONE, "c": _ONE}, questions=_LSTM
        ),
        ExerciseTemplate(
            {"x": (2, 1)} | _cell("ifoc", 2, 2),
            {"h": ([[1], [0]],), "c": ([[0], [1]],)},
            questions=_LSTM,
        ),
    ),
    "recurrent-attention": (
        ExerciseTemplate({"x": (1, 2)}, {"W": (1, 2), "U": (1, -1)}, questions=_LOOKING),
        ExerciseTemplate({"x": (1, 3)}, {"W": (1, 2), "U": (1, -1)}, questions=_LOOKING),
        ExerciseTemplate(
            {"x": (2, 2)} | _cell(".", 2, 2),
            option_choices={"score": ("dot", "scaled")},
            questions=_LOOKING,
        ),
    ),
    "bptt": (
        ExerciseTemplate(
            {"x": (1, 2)},
            {"W": _ONE, "U": _ONE, "target": (0, 1)},
            {"cell": ("rnn",)},
            questions=_BACK,
        ),
        ExerciseTemplate(
            {"x": (2, 2)} | _cell(".", 2, 2),
            {"target": ([1, 0],)},
            {"cell": ("rnn",)},
            questions=_BACK,
        ),
        ExerciseTemplate(
            {"x": (1, 2)} | _cell("ifoc", 1, 1),
            {"target": (0, 1)},
            {"cell": ("lstm",)},
            questions=_BACK,
        ),
    ),
}
