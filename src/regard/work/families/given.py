"""The names that each family takes under `given`; any other is an error, not a number left out."""

import re
from collections.abc import Mapping
from difflib import SequenceMatcher
from typing import Any

from regard.errors import WorkError, nearest

_MAPS = "W_Q W_K W_V b_Q b_K b_V"
_HEADS = f"{_MAPS} W_Q_# W_K_# W_V_# b_Q_# b_K_# b_V_# W_O b_O"
_PLAIN = f"X Q K V {_MAPS} B rel β"
_WIDE = "W_1 b_1 W_2 b_2 W_G b_G"
_NORMS = "gamma_1 beta_1 gamma_2 beta_2 γ_1 β_1 γ_2 β_2"
_CROSS = "U_Q U_K U_V U_O U_Q_# U_K_# U_V_# b_U_Q b_U_K b_U_V b_U_O b_U_Q_# b_U_K_# b_U_V_#"
_BLOCK = f"{_HEADS} {_WIDE} {_NORMS} B B_# rel"
_LSTM = "W_i U_i W_f U_f W_o U_o W_c U_c"
_CELLS = {
    "rnn": "x W U h b",
    "gru": "x W_z U_z W_r U_r W U h b_z b_r b",
    "lstm": f"x {_LSTM} h c b_i b_f b_o b_c",
}

# a # stands for 1, 2, 3 … without a gap
GIVEN_NAMES: dict[str, str] = {
    "attention": f"{_PLAIN} Y W_B W_1 W_2 V_a",
    "cross-attention": f"{_PLAIN} Y W_B W_1 W_2 V_a",
    "sharpness": f"{_PLAIN} Y",
    "multi-head": f"X Y Q K V {_HEADS} B B_# rel β",
    "counts": "d h d_ff side P C",
    "layer-norm": "X gamma beta γ β",
    "feed-forward": f"X {_WIDE}",
    "encoder": f"X {_BLOCK}",
    "decoder": f"X Y {_BLOCK} {_CROSS} gamma_3 beta_3 γ_3 β_3",
    "vit": f"image image_# W_E b_E cls pos W_H b_H W_P b_P {_BLOCK} gamma_f beta_f γ_f β_f",
    "position-resize": "pos",
    "shuffle": f"X order {_MAPS} B rel β",
    "positions": "p d k base",
    "rotary": "Q K V p base B rel β",
    **_CELLS,
    **{f"bptt of {cell}": f"{names} target dh" for cell, names in _CELLS.items()},
    "gates": f"W U x h c {_LSTM}",
    "recurrent-attention": f"{_CELLS['rnn']} W_1 W_2 V_a",
    "perturb": f"{_PLAIN} eps alpha",
    "identity": "X n W_V",
    "permutation": "order X",
    "convolution": "kernel X",
    "cost": "M N k L V n d",
    "moments": "sigma mu mm d",
}


def check_given(family: str, given: Mapping[str, Any]) -> None:
    """Raise unless every given name is one that the family takes.

    >>> check_given("attention", {"X": 1, "WQ": 2})
    Traceback (most recent call last):
        ...
    regard.errors.WorkError: given: needs names that attention takes, got 'WQ'; try W_Q
    """
    known = GIVEN_NAMES[family].split()
    for name in given:
        stem, index = _indexed(name) if family == "vit" else (name, "")
        if stem in known:
            continue
        pattern, number = re.sub(r"_[1-9]\d*$", "_#", stem), stem.rpartition("_")[2]
        if pattern == stem or pattern not in known:
            raise WorkError(
                f"given: needs names that {family} takes, got {name!r}{_hint(stem, known)}"
            )
        before = f"{pattern[:-1]}{int(number) - 1}{index}"
        if int(number) > 1 and before not in given:
            raise WorkError(f"given: needs {before} before {name}, got none")


def _indexed(name: str) -> tuple[str, str]:
    """A name of a Vision Transformer's own layer, W_Q_L2, without that."""
    found = re.fullmatch(r"(.+?)(_L[1-9]\d*)?", name)
    return (found[1], found[2] or "") if found else (name, "")


def _hint(name: str, known: list[str]) -> str:
    """The name that was likely meant, first among those with the same first letter; else all."""
    names = [one.replace("#", "1") for one in known]
    alike = [one for one in names if name and one[0].lower() == name[0].lower()]
    folded = {one.replace("_", "").lower(): one for one in names}
    exact = folded.get(name.replace("_", "").lower())
    if exact is not None:
        return f"; try {exact}"
    close = max(alike, key=lambda one: SequenceMatcher(None, name, one).ratio(), default="")
    if SequenceMatcher(None, name, close).ratio() > 0.4:
        return f"; try {close}"
    return nearest(name, names) or f"; try one of {', '.join(known)}"
