"""Problem files: read from TOML, validated, and solved by their family.

problem = read_problem("three-tokens")            # an included one, or a TOML file
solution = solve(problem | {"mask": "causal"})    # its steps: names, formulas, exact matrices
print(solution)
check_answers(solution, read_toml("answers.toml"))
"""

import inspect
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from regard.errors import FileError, WorkError, check_choice, suggestion
from regard.files import parse_toml, read_text
from regard.work.exact import CONSTANTS, FUNCTIONS, SYMBOL, parse_matrix, parse_number, shorten_repr
from regard.work.families import FAMILIES
from regard.work.solution import Solution, Step, apply_rule

PROBLEMS = Path(__file__).parent / "problems"
MAX_BYTES = 1 << 20  # largest problem or answer file
MAX_SYMBOLS = 12  # per problem
NOT_SYMBOLS = {*FUNCTIONS, *CONSTANTS} - {"e", "E"}
COMMON_KEYS = ("family", "given", "symbols", "values")  # keys of every family


def solve(problem: Mapping[str, Any]) -> Solution:
    """Solve a problem: a dict with `family`, the options of that family, and `given`.

    Optional: `symbols` (names kept symbolic) and `values` (numbers substituted at the end).

    >>> problem = {"family": "attention", "scale": 1, "given": {"X": [[1, 0], [1, 1], [0, 2]]}}
    >>> solution = solve(problem)
    >>> [step.name for step in solution.steps]
    ['S', 'E', 'N', 'A', 'H']
    """
    name = problem.get("family", "attention")
    if not isinstance(name, str) or name not in FAMILIES:
        hint = suggestion(name, FAMILIES) if isinstance(name, str) else ""
        names = ", ".join(FAMILIES)
        raise WorkError(f"family: needs one of {names}, got {shorten_repr(name)}{hint}")
    family, options = FAMILIES[name], FAMILIES[name].options
    for key in problem:
        if key not in (*COMMON_KEYS, *options):
            hint = suggestion(key, (*options, *COMMON_KEYS))
            known = f"an option of {name}, {', '.join(options)}" if options else "to be left out"
            raise WorkError(f"{key}: needs {known}, got {key!r}{hint}")
    given = problem.get("given")
    if not isinstance(given, Mapping) or not given:
        raise WorkError("given: needs a table of numbers, got none; try [given] and X = [[1, 0]]")
    values = problem.get("values", {})
    if not isinstance(values, Mapping):
        got = shorten_repr(values)
        raise WorkError(f"values: needs a table with one number per symbol, got {got}")
    if symbols := _parse_symbols(problem.get("symbols"), values):
        problem = _parse_symbolic(problem, symbols)
        given = problem["given"]
    chosen = {key: value for key, value in problem.items() if key not in COMMON_KEYS}
    return _substitute_values(family.solve(given, **chosen), values)


def _parse_symbols(symbols: Any, values: Mapping[str, Any]) -> list[str]:
    """Validate symbol names; those with values need no declaration."""
    declared: Any = [symbols] if isinstance(symbols, str) else symbols or []
    if not isinstance(declared, list | tuple):
        raise WorkError(f'symbols: needs a list such as ["a", "x_1"], got {shorten_repr(declared)}')
    for name in (*declared, *values):
        if not isinstance(name, str) or not SYMBOL.fullmatch(name) or name in NOT_SYMBOLS:
            raise WorkError(f"symbols: needs names such as a, x_1 or β, got {name!r}")
    names = list(dict.fromkeys([*declared, *values]))
    if len(names) > MAX_SYMBOLS:
        raise WorkError(f"symbols: needs at most {MAX_SYMBOLS}, got {len(names)}")
    return names


def _parse_symbolic(values: Any, symbols: Sequence[str]) -> Any:
    """Parse every string that contains a declared symbol, in nested lists and tables."""
    if isinstance(values, Mapping):
        return {name: _parse_symbolic(value, symbols) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [_parse_symbolic(value, symbols) for value in values]
    if not isinstance(values, str):
        return values
    try:
        number = parse_number(values, symbols)
    except WorkError:
        return values  # an option such as mask = "causal"; the family validates it
    return number if number.free_symbols else values


def _substitute_values(solution: Solution, values: Mapping[str, Any]) -> Solution:
    """Add a final step that substitutes numbers for the symbols of the last result."""
    if not values or not solution.steps:
        return solution
    used = solution.symbols
    for name in values:
        if name not in used:
            known, hint = ", ".join(used) or "none", suggestion(name, used)
            raise WorkError(f"values: needs symbols of [given], {known}, got {name!r}{hint}")
    last = solution.steps[-1]
    numbers = {name: parse_matrix(value, name) for name, value in values.items()}
    for name in numbers:
        if name in solution.values():
            raise WorkError(f"symbols: need names that no step has, got {name!r}")
    rule, inputs = f"substitute {', '.join(numbers)}", (last.name, *numbers)
    value = apply_rule(rule, last.value, *numbers.values())
    step = Step(f"{last.name}_values", rule, inputs, value, "with the values substituted")
    return replace(solution, given={**solution.given, **numbers}, steps=(*solution.steps, step))


def problem_names() -> list[str]:
    """Names of the included problems.

    >>> "three-tokens" in problem_names()
    True
    """
    return sorted(file.stem for file in PROBLEMS.glob("*.toml"))


def problem_titles() -> dict[str, str]:
    """Included problems: name and one-line title.

    >>> problem_titles()["rnn"]
    'An RNN with two units over three steps.'
    """
    texts = {name: read_text(PROBLEMS / f"{name}.toml") for name in problem_names()}
    return {name: text.splitlines()[0].removeprefix("#").strip() for name, text in texts.items()}


def read_problem(source: str | Path) -> dict[str, Any]:
    """Read a problem from a TOML file, or an included one by name.

    >>> read_problem("gru")["family"]
    'gru'
    """
    included = PROBLEMS / f"{source}.toml"
    if not Path(source).exists() and included.parent == PROBLEMS:
        if included.is_file():
            return read_toml(included)
        if not Path(source).suffix:
            hint = suggestion(str(source), problem_names())
            names = ", ".join(problem_names())
            raise WorkError(f"problem: needs a TOML file or one of {names}, got {source}{hint}")
    return read_toml(source)


def new_problem(family: str) -> str:
    """A problem file of a family to start from, with its options in comments; it solves as it is.

    >>> print(new_problem("rnn").splitlines()[1])
    # Names that may stand under [given]: x W U h b
    """
    check_choice("family", family, FAMILIES, WorkError)
    problems = {x: read_problem(x) for x in problem_names()}
    names = [x for x, one in problems.items() if one.get("family", "attention") == family]
    name = min(
        names, key=lambda x: (len(problems[x]), "score" in problems[x], -len(problems[x]["given"]))
    )
    title, *lines = read_text(PROBLEMS / f"{name}.toml").splitlines()
    facts, record = problems[name], FAMILIES[family]
    parameters = inspect.signature(record.solve).parameters
    options = [
        f"# {x} = {_toml_value(parameters[x].default)}" for x in record.options if x not in facts
    ]
    notes = [f"# Names that may stand under [given]: {record.given}"] if record.given else []
    notes += ['# Numbers are 1, 0.5, "1/2" or "sqrt(2)". Solve it with `regard work FILE`.']
    notes += ["# Options, with what they are if left out:", *options] if options else []
    return "\n".join([title, *notes, *lines, ""])


def _toml_value(value: Any) -> str:
    if value is None:
        return "…  # follows from the numbers, or none"
    return json.dumps(list(value) if isinstance(value, tuple) else value)


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
    """Read problems by heading; `options` replace theirs, `sweep` (NAME=V1,V2 …) varies one.

    >>> list(read_problems(["self-attention"], sweep="scale=0,1"))
    ['scale = 0', 'scale = 1']
    """
    problems = {
        str(source): override_problem(read_problem(source), options or {}) for source in sources
    }
    if sweep is None:
        return problems
    name, _, values = sweep.partition("=")
    swept = {}
    for source, problem in problems.items():
        before = f"{source}, " if len(problems) > 1 else ""
        for value in values.split(","):
            option = dict([parse_option(f"{name}={value}")])
            swept[f"{before}{name} = {value}"] = override_problem(problem, option)
    return swept


def override_problem(problem: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """A problem with options replaced, or given numbers where the name is one of those.

    >>> override_problem({"given": {"X": [[1]]}}, {"X": "[[2, 3]]", "scale": 1})
    {'given': {'X': [['2', '3']]}, 'scale': 1}
    """
    given = problem.get("given", {})
    numbers = {name: _parse_rows(x) for name, x in options.items() if name in given}
    rest = {name: x for name, x in options.items() if name not in given}
    return {**problem, **({"given": {**given, **numbers}} if numbers else {}), **rest}


def _parse_rows(value: Any) -> Any:
    """Rows of numbers as they are written in a problem file; a number where there are no rows."""
    rows = re.findall(r"\[([^\[\]]*)\]", value) if isinstance(value, str) else []
    return [[x.strip().strip("\"'") for x in row.split(",")] for row in rows] or value


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read a TOML file of at most 1 MiB; decimals stay strings, so that no digit is lost."""
    file = Path(path)
    try:
        if not file.is_file():
            raise FileError(f"{file}: needs to be a TOML file, got no such file")
        if file.stat().st_size > MAX_BYTES:
            raise FileError(f"{file}: needs at most {MAX_BYTES} bytes, got {file.stat().st_size}")
        # a float would lose the trailing zero of 0.50 and digits after the sixteenth
        return parse_toml(read_text(file), lambda decimal: decimal.replace("_", ""))
    except FileError:
        raise
    except tomllib.TOMLDecodeError as error:
        hint = 'try a point in decimals, 0.5, and quotes around formulas and "?"'
        raise FileError(f"{file}: needs TOML, got {error}; {hint}") from error
    except (ValueError, OSError) as error:  # an integer of 5,000 digits, a NUL in a name
        raise FileError(f"{file}: needs TOML, got {error}") from error
