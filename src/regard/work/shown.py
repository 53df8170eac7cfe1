"""What of a solution is shown, whatever the format: which steps, which entry, exact or rounded."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from regard.errors import WorkError, suggestion
from regard.work.numbers import decimal, is_simple, is_whole_in, plain
from regard.work.rules import Matrix, rule
from regard.work.solution import Solution, Step

LONGEST_ENTRY = 160  # characters; a longer one nobody reads


class Entry(NamedTuple):
    """The first entry of a step with its numbers put in, and what they make.

    >>> Entry("1·2", "2").put_in
    '1·2'
    """

    put_in: str
    equals: str


class Shown(NamedTuple):
    """One step as it is shown: its number, its entry, and which results are worth their place.

    >>> from regard.work import attention
    >>> shown(attention({"X": [[1, 0], [0, 2]]}, scale=1))[0].says
    'The scores: how well each query fits each key'
    """

    at: int
    step: Step
    entry: Entry | None
    exact: bool
    rounded: bool

    @property
    def says(self) -> str:
        """What the step is for, as a heading."""
        return f"{self.step.says[:1].upper()}{self.step.says[1:]}"


def shown(solution: Solution, only: Sequence[str] = (), digits: int = 6) -> list[Shown]:
    """The steps to show, all or those whose names match; `A*` stands for all that begin with A.

    >>> from regard.work import attention
    >>> [one.at for one in shown(attention({"X": [[1, 0], [0, 2]]}, scale=1), ["A", "H"])]
    [4, 5]
    """
    need_names(only, solution)
    return [
        Shown(
            at,
            step,
            first_entry(solution, step, digits),
            all(map(is_simple, step.value)) or bool(step.value.free_symbols),
            not all(x.is_Rational or x.is_infinite or x.free_symbols for x in step.value),
        )
        for at, step in enumerate(solution.steps, 1)
        if not only or wanted(step.name, only)
    ]


def need_names(only: Sequence[str], *solutions: Solution) -> None:
    """Raise unless each of these names, or patterns, is of something in one of the solutions.

    >>> from regard.work import attention
    >>> need_names(["A", "remarks"], attention({"X": [[1, 0], [0, 2]]}))
    """
    for told in only:
        if not any(has_name(solution, told) for solution in solutions):
            names = list(dict.fromkeys(name for one in solutions for name in _names(one)))
            raise WorkError(
                f"only: needs names of steps, {', '.join(names)}, got {told!r}"
                f"{suggestion(told, names)}"
            )


def has_name(solution: Solution, told: str) -> bool:
    """Whether a name, or a pattern, is of something in a solution.

    >>> from regard.work import attention
    >>> has_name(attention({"X": [[1, 0], [0, 2]]}), "h_*")
    False
    """
    return any(fnmatchcase(name, told) for name in _names(solution))


def _names(solution: Solution) -> list[str]:
    return [*solution.given, *(step.name for step in solution.steps), "remarks"]


def given_shown(solution: Solution, only: Sequence[str] = ()) -> dict[str, Matrix]:
    """What was given, all or those whose names match.

    >>> from regard.work import attention
    >>> list(given_shown(attention({"X": [[1, 0], [0, 2]]}, scale=1), ["β"]))
    ['β']
    """
    return {n: v for n, v in solution.given.items() if not only or wanted(n, only)}


def remarks_shown(solution: Solution, only: Sequence[str] = ()) -> tuple[str, ...]:
    """The sentences at the end; where only some steps are shown, if `remarks` is among the names.

    >>> from regard.work import attention
    >>> remarks_shown(attention({"X": [[1, 0], [0, 2]]}, scale=1), ["A"])
    ()
    """
    return solution.remarks if not only or wanted("remarks", only) else ()


def wanted(name: str, only: Sequence[str]) -> bool:
    """Whether a name is among those asked for.

    >>> wanted("h_2", ["h_*"]), wanted("A", ["H"])
    (True, False)
    """
    return any(fnmatchcase(name, told) for told in only)


def first_entry(solution: Solution, step: Step, digits: int = 6) -> Entry | None:
    """The first entry with its numbers put in; None where there is nothing to put in.

    >>> from regard.work import attention
    >>> worked = attention({"X": [[1, 0], [0, 2]]}, scale=1)
    >>> first_entry(worked, worked.steps[0])
    Entry(put_in='1·1 + 0·0', equals='1')
    """
    tell = rule(step.rule).entry
    if tell is None:
        return None
    values = solution.values()
    put_in = tell(0, 0, *(values[name] for name in step.takes))
    result = step.value[0, 0]
    equals = plain(result)
    if not is_simple(result):
        # the dots stand for digits left off: a 3 that was carried to 50 digits has none
        short = is_whole_in(result, digits)
        equals = decimal(result, digits) if short else f"{decimal(result, digits, zeros=True)} …"
    if not put_in or len(put_in) > LONGEST_ENTRY or put_in == equals:
        return None
    return Entry(put_in, equals)
