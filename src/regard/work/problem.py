"""Problems as small files: a family, its choices, and the numbers that are given."""

import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from regard.errors import FileError, WorkError, suggestion
from regard.files import read_text
from regard.work.attention import attention, cross
from regard.work.block import decoder, encoder, feed_forward, layer_norm
from regard.work.constructions import convolution, identity, permutation
from regard.work.cost import cost
from regard.work.counts import counts
from regard.work.gates import gates
from regard.work.gradients import bptt
from regard.work.hybrid import hybrid
from regard.work.moments import moments
from regard.work.multi_head import multi_head
from regard.work.numbers import shortened
from regard.work.perturb import perturb
from regard.work.positions import positions, rotary
from regard.work.proofs import proof
from regard.work.recurrent import NEEDS, unrolled
from regard.work.sharpness import sharpness
from regard.work.shuffle import shuffle
from regard.work.solution import Solution
from regard.work.symbols import declared, put_in, with_symbols
from regard.work.vision import resized, vit

PROBLEMS = Path(__file__).parent / "problems"
LARGEST = 1 << 20  # bytes of a problem; one by hand is far smaller
DOTTED = re.compile(r"""(?<![\w'"-])(?:[\w'"-]++\s*+\.\s*+){20}""")
Family = Callable[..., Solution]
ALWAYS = ("family", "given", "symbols", "values")  # what every problem may have

ATTENTION = ("convention", "scale", "mask", "score")
BLOCK = ("heads", "norm", "mask", "scale", "activation", "eps", "kind")
FAMILIES: dict[str, tuple[Family, tuple[str, ...]]] = {
    "attention": (attention, ATTENTION),
    "cross": (cross, ATTENTION),
    "sharpness": (sharpness, ("scales",)),
    "multi-head": (multi_head, ("convention", "scale", "mask", "heads")),
    "counts": (counts, ()),
    "layer-norm": (layer_norm, ("eps",)),
    "feed-forward": (feed_forward, ("activation",)),
    "encoder": (encoder, BLOCK),
    "decoder": (decoder, BLOCK),
    "vit": (vit, ("patch", "heads", "layers", "norm", "activation", "eps", "resize")),
    "resize": (resized, ("old", "new", "resize")),
    "shuffle": (shuffle, ("scale", "mask")),
    "positions": (positions, ()),
    "rotary": (rotary, ("scale", "mask")),
    "bptt": (bptt, ("cell", "clip", "forward")),
    "gates": (gates, ("small",)),
    "hybrid": (hybrid, ("score", "query")),
    "perturb": (perturb, ("what", "index", "scale", "noise")),
    "identity": (identity, ("scale", "reach")),
    "permutation": (permutation, ("scale", "reach")),
    "convolution": (convolution, ("heads",)),
    "cost": (cost, ()),
    "proof": (proof, ("of",)),
    "moments": (moments, ("draws", "seed", "same")),
    **{name: (lambda given, name=name: unrolled(name, given), ()) for name in NEEDS},
}


def work(problem: Mapping[str, Any]) -> Solution:
    """Work a problem: `family`, what may be chosen in it, and the numbers under `given`.

    >>> worked = work({"family": "attention", "scale": 1, "given": {"X": [[1, 0], [1, 1], [0, 2]]}})
    >>> [step.name for step in worked.steps]
    ['S', 'E', 'N', 'A', 'H']
    """
    name = problem.get("family", "attention")
    if not isinstance(name, str) or name not in FAMILIES:
        hint = suggestion(name, FAMILIES) if isinstance(name, str) else ""
        some = ", ".join(FAMILIES)
        raise WorkError(f"family: needs one of {some}, got {shortened(name)}{hint}")
    family, choices = FAMILIES[name]
    for key in problem:
        if key not in (*ALWAYS, *choices):
            hint = suggestion(key, (*choices, *ALWAYS), 0.5)
            rule = f"one of {', '.join(choices)}" if choices else "left out, there is no choice,"
            raise WorkError(f"{key}: needs to be {rule} for {name}, got it{hint}")
    given = problem.get("given")
    if not isinstance(given, Mapping) or not given:
        raise WorkError("given: needs a table of numbers, got none; try [given] and X = [[1, 0]]")
    values = problem.get("values", {})
    if not isinstance(values, Mapping):
        got = shortened(values)
        raise WorkError(f"values: needs a table, a number for each symbol, got {got}")
    if symbols := declared(problem.get("symbols"), values):
        problem = with_symbols(problem, symbols)
        given = problem["given"]
    chosen = {key: value for key, value in problem.items() if key not in ALWAYS}
    return put_in(family(given, **chosen), values)


def problem_names() -> list[str]:
    """The problems that come along.

    >>> "three-tokens" in problem_names()
    True
    """
    return sorted(file.stem for file in PROBLEMS.glob("*.toml"))


def problem_titles() -> dict[str, str]:
    """The problems that come along, each with what it is about.

    >>> problem_titles()["rnn"]
    'An RNN of two numbers over three steps.'
    """
    return {name: _first_line(PROBLEMS / f"{name}.toml") for name in problem_names()}


def _first_line(file: Path) -> str:
    return file.read_text(encoding="utf-8").splitlines()[0].removeprefix("#").strip()


def read_problem(told: str | Path) -> dict[str, Any]:
    """A problem from a file, or one that comes along by its name.

    >>> read_problem("gru")["family"]
    'gru'
    """
    own = PROBLEMS / f"{told}.toml"
    if not Path(told).exists() and own.parent == PROBLEMS:
        if own.is_file():
            return read_toml(own)
        if not Path(told).suffix:
            hint = suggestion(str(told), problem_names())
            some = ", ".join(problem_names())
            raise WorkError(f"problem: needs a TOML file or one of {some}, got {told}{hint}")
    return read_toml(told)


def read_toml(path: str | Path) -> dict[str, Any]:
    """A small TOML file, of a problem or of answers; decimals stay text, exact as written.

    >>> read_toml("nowhere.toml")
    Traceback (most recent call last):
        ...
    regard.errors.FileError: nowhere.toml: needs to be a TOML file, got nothing there
    """
    file = Path(path)
    try:
        if not file.is_file():
            raise FileError(f"{file}: needs to be a TOML file, got nothing there")
        if file.stat().st_size > LARGEST:
            raise FileError(f"{file}: needs at most {LARGEST} bytes, got {file.stat().st_size}")
        text = read_text(file).replace("\r\n", "\n").replace("\r", "\n")
        if DOTTED.search(text):  # tomllib takes their count squared
            raise FileError(f"{file}: needs TOML with short names, got one of more than 20 parts")
        # a float would lose the places of 0.50, and the digits after the sixteenth
        return tomllib.loads(text, parse_float=lambda decimal: decimal.replace("_", ""))
    except FileError:
        raise
    except RecursionError:
        raise FileError(f"{file}: needs TOML, got too many brackets inside brackets") from None
    except tomllib.TOMLDecodeError as error:
        hint = 'try a point in decimals, 0.5, and quotes around formulas and "?"'
        raise FileError(f"{file}: needs TOML, got {error}; {hint}") from error
    except (ValueError, OSError) as error:  # a number of 5,000 digits, a name that holds a NUL
        raise FileError(f"{file}: needs TOML, got {error}") from error
