"""Selection of what is shown, shared by all formats: steps, worked entry, exact or rounded."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from regard.errors import WorkError, suggestion
from regard.work.exact.numbers import format_decimal, format_plain, is_exact_in, is_short_form
from regard.work.rules import Matrix, get_rule
from regard.work.solution import Solution, Step

MAX_ENTRY_CHARS = 160  # longer worked entries are not shown


class WorkedEntry(NamedTuple):
    """Arithmetic of the first entry of a step, and its result.

    >>> WorkedEntry("1·2", "2").expression
    '1·2'
    """

    expression: str
    result: str


class DisplayStep(NamedTuple):
    """One step for display: number, worked entry, and whether to show exact and rounded values.

    >>> from regard.work.families.attention import solve_attention
    >>> select_steps(solve_attention({"X": [[1, 0], [0, 2]]}, scale=1))[0].heading
    'The scores of each query and key'
    """

    number: int
    step: Step
    entry: WorkedEntry | None
    show_exact: bool
    show_rounded: bool

    @property
    def heading(self) -> str:
        """Title of the step, capitalised."""
        return f"{self.step.title[:1].upper()}{self.step.title[1:]}"


def select_steps(
    solution: Solution, only: Sequence[str] = (), digits: int = 6
) -> list[DisplayStep]:
    """Steps to show: all, or those whose names match a glob pattern.

    >>> from regard.work.families.attention import solve_attention
    >>> solution = solve_attention({"X": [[1, 0], [0, 2]]}, scale=1)
    >>> [step.number for step in select_steps(solution, ["A", "H"])]
    [4, 5]
    """
    check_names(only, solution)
    return [
        DisplayStep(
            at,
            step,
            first_entry(solution, step, digits),
            all(map(is_short_form, step.value)) or bool(step.value.free_symbols),
            not all(x.is_Rational or x.is_infinite or x.free_symbols for x in step.value),
        )
        for at, step in enumerate(solution.steps, 1)
        if not only or matches_any(step.name, only)
    ]


def check_names(only: Sequence[str], *solutions: Solution) -> None:
    """Raise a WorkError unless each name or pattern matches in one of the solutions.

    >>> from regard.work.families.attention import solve_attention
    >>> check_names(["A", "remarks"], solve_attention({"X": [[1, 0], [0, 2]]}))
    """
    for pattern in only:
        if not any(has_name(solution, pattern) for solution in solutions):
            names = list(dict.fromkeys(name for one in solutions for name in _names(one)))
            raise WorkError(
                f"only: needs names of steps, {', '.join(names)}, got {pattern!r}"
                f"{suggestion(pattern, names)}"
            )


def has_name(solution: Solution, pattern: str) -> bool:
    """Whether a name or pattern matches anything in a solution.

    >>> from regard.work.families.attention import solve_attention
    >>> has_name(solve_attention({"X": [[1, 0], [0, 2]]}), "h_*")
    False
    """
    return any(fnmatchcase(name, pattern) for name in _names(solution))


def _names(solution: Solution) -> list[str]:
    return [*solution.given, *(step.name for step in solution.steps), "remarks"]


def select_given(solution: Solution, only: Sequence[str] = ()) -> dict[str, Matrix]:
    """Given matrices to show: all, or those whose names match.

    >>> from regard.work.families.attention import solve_attention
    >>> list(select_given(solve_attention({"X": [[1, 0], [0, 2]]}, scale=1), ["β"]))
    ['β']
    """
    return {n: v for n, v in solution.given.items() if not only or matches_any(n, only)}


def select_remarks(solution: Solution, only: Sequence[str] = ()) -> tuple[str, ...]:
    """Remarks to show: all without a selection, or if it includes `remarks`.

    >>> from regard.work.families.attention import solve_attention
    >>> select_remarks(solve_attention({"X": [[1, 0], [0, 2]]}, scale=1), ["A"])
    ()
    """
    return solution.remarks if not only or matches_any("remarks", only) else ()


def matches_any(name: str, patterns: Sequence[str]) -> bool:
    """Whether a name matches one of the glob patterns.

    >>> matches_any("h_2", ["h_*"]), matches_any("A", ["H"])
    (True, False)
    """
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def first_entry(solution: Solution, step: Step, digits: int = 6) -> WorkedEntry | None:
    """Arithmetic of the first entry; None where the rule has none or it is too long.

    >>> from regard.work.families.attention import solve_attention
    >>> solution = solve_attention({"X": [[1, 0], [0, 2]]}, scale=1)
    >>> first_entry(solution, solution.steps[0])
    WorkedEntry(expression='1·1 + 0·0', result='1')
    """
    values = solution.values()
    put_in = get_rule(step.rule).format_entry(*(values[name] for name in step.inputs))
    result = step.value[0, 0]
    equals = format_plain(result)
    if not is_short_form(result):
        # … marks omitted digits: a 3 carried to 50 digits has none
        short = is_exact_in(result, digits)
        equals = (
            format_decimal(result, digits)
            if short
            else f"{format_decimal(result, digits, keep_zeros=True)} …"
        )
    if not put_in or len(put_in) > MAX_ENTRY_CHARS or put_in == equals:
        return None
    return WorkedEntry(put_in, equals)
