"""Problems as small files: a family, its choices, and the numbers that are given."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.errors import FileError, WorkError, nearest
from regard.files import read_text
from regard.work.exact.numbers import parse_matrix, shorten_repr
from regard.work.exact.symbols import parse_symbolic, parse_symbols
from regard.work.families import FAMILIES
from regard.work.rules.symbols import SUBSTITUTION_PREFIX
from regard.work.solution import Solution, Step, apply_rule

PROBLEMS = Path(__file__).parent / "problems"
MAX_BYTES = 1 << 20  # bytes of a problem; one by hand is far smaller
LONG_DOTTED_KEY = re.compile(r"""(?<![\w'"-])(?:[\w'"-]++\s*+\.\s*+){20}""")
COMMON_KEYS = ("family", "given", "symbols", "values")  # what every problem may have


def solve(problem: Mapping[str, Any]) -> Solution:
    """Work a problem: `family`, what may be chosen in it, and the numbers under `given`.

    >>> worked = solve({"family": "attention", "scale": 1, "given": {"X": [[1, 0], [1, 1], [0, 2]]}})
    >>> [step.name for step in worked.steps]
    ['S', 'E', 'N', 'A', 'H']
    """
    name = problem.get("family", "attention")
    if not isinstance(name, str) or name not in FAMILIES:
        hint = nearest(name, FAMILIES) if isinstance(name, str) else ""
        some = ", ".join(FAMILIES)
        raise WorkError(f"family: needs one of {some}, got {shorten_repr(name)}{hint}")
    family, choices = FAMILIES[name], FAMILIES[name].options
    for key in problem:
        if key not in (*COMMON_KEYS, *choices):
            hint = nearest(key, (*choices, *COMMON_KEYS), 0.5)
            rule = f"one of {', '.join(choices)}" if choices else "left out, there is no choice,"
            raise WorkError(f"{key}: needs to be {rule} for {name}, got it{hint}")
    given = problem.get("given")
    if not isinstance(given, Mapping) or not given:
        raise WorkError("given: needs a table of numbers, got none; try [given] and X = [[1, 0]]")
    values = problem.get("values", {})
    if not isinstance(values, Mapping):
        got = shorten_repr(values)
        raise WorkError(f"values: needs a table, a number for each symbol, got {got}")
    if symbols := parse_symbols(problem.get("symbols"), values):
        problem = parse_symbolic(problem, symbols)
        given = problem["given"]
    chosen = {key: value for key, value in problem.items() if key not in COMMON_KEYS}
    return substitute_values(family.solve(given, **chosen), values)


def substitute_values(solution: Solution, values: Mapping[str, Any]) -> Solution:
    """The solution with one more step: its last result with numbers in the places of symbols.

    >>> from regard.work import solve
    >>> told = {"symbols": ["a"], "values": {"a": 2}, "scale": 1, "given": {"X": [["a"], [0]]}}
    >>> solve(told)["H_values"]
    Matrix([
    [2*exp(4)/(1 + exp(4))],
    [                    1]])
    """
    if not values or not solution.steps:
        return solution
    used = sorted({str(one) for value in solution.given.values() for one in value.free_symbols})
    for name in values:
        if name not in used:
            some, hint = ", ".join(used) or "none", nearest(name, used)
            raise WorkError(f"values: needs symbols of [given], {some}, got {name!r}{hint}")
    last = solution.steps[-1]
    own = {name: parse_matrix(value, name) for name, value in values.items()}
    for name in own:
        if name in solution.values():
            raise WorkError(f"symbols: need names that nothing else has, got {name!r}")
    by, takes = SUBSTITUTION_PREFIX + ", ".join(own), (last.name, *own)
    value = apply_rule(by, last.value, *own.values())
    step = Step(f"{last.name}_values", by, takes, value, "with the values put in")
    return Solution(
        solution.family,
        {**solution.given, **own},
        (*solution.steps, step),
        solution.remarks,
        solution.mistakes,
    )


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


def read_problem(source: str | Path) -> dict[str, Any]:
    """A problem from a file, or one that comes along by its name.

    >>> read_problem("gru")["family"]
    'gru'
    """
    own = PROBLEMS / f"{source}.toml"
    if not Path(source).exists() and own.parent == PROBLEMS:
        if own.is_file():
            return read_toml(own)
        if not Path(source).suffix:
            hint = nearest(str(source), problem_names())
            some = ", ".join(problem_names())
            raise WorkError(f"problem: needs a TOML file or one of {some}, got {source}{hint}")
    return read_toml(source)


def parse_option(text: str) -> tuple[str, Any]:
    """Name and value of an option written NAME=VALUE; integers and booleans are converted.

    >>> parse_option("heads=2"), parse_option("mask=causal")
    (('heads', 2), ('mask', 'causal'))
    """
    name, sign, value = (part.strip() for part in text.partition("="))
    if not (name and sign and value):
        raise WorkError(f"set: needs NAME=VALUE, got {text!r}; try mask=causal")
    if value in ("true", "false"):
        return name, value == "true"
    return name, int(value) if value.lstrip("-").isdigit() else value


def read_problems(
    sources: Sequence[str | Path],
    options: Mapping[str, Any] | None = None,
    sweep: str | None = None,
) -> dict[str, dict[str, Any]]:
    """Read problems, override options, and vary one option; by heading.

    Args:
        sources: TOML files or names of included problems.
        options: options that replace those of each problem.
        sweep: NAME=V1,V2 …: one copy of each problem per value.

    >>> list(read_problems(["self-attention"], sweep="scale=0,1"))
    ['scale = 0', 'scale = 1']
    """
    problems = {str(source): read_problem(source) | dict(options or {}) for source in sources}
    if sweep is None:
        return problems
    name, _, values = sweep.partition("=")
    return {
        f"{source}, {name} = {value}" if len(problems) > 1 else f"{name} = {value}": problem
        | dict([parse_option(f"{name}={value}")])
        for source, problem in problems.items()
        for value in values.split(",")
    }


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
        if file.stat().st_size > MAX_BYTES:
            raise FileError(f"{file}: needs at most {MAX_BYTES} bytes, got {file.stat().st_size}")
        text = read_text(file).replace("\r\n", "\n").replace("\r", "\n")
        if LONG_DOTTED_KEY.search(text):  # tomllib takes their count squared
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
