"""Marking: each answer against the solution, and against what follows from earlier answers."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import sympy

from regard.errors import WorkError, suggestion
from regard.work.exact import parse_number
from regard.work.marking.answers import (
    fill_blanks,
    is_close,
    list_differences,
    matches_answer,
    recompute_step,
    without_uninformative,
)
from regard.work.marking.diagnoses import diagnose
from regard.work.marking.reading import StudentAnswer, format_index, read_answer
from regard.work.marking.rounding import rounding_spread
from regard.work.rules import Matrix
from regard.work.solution import Solution, Step

ROUNDED_EARLY = "right, but rounded early"
CARRIED = "carried forward"
ALREADY_SCALED = "written already scaled, as {}"
TRANSPOSED = "written with rows and columns in the other convention"
TRIVIAL = "all entries are equal, so there was nothing to work out"
MANY = 4  # entries that are not equal by accident
MIN_TURNED = 2  # matrices that show the other convention
MAX_MIXED_INPUTS = 3  # inputs that may each be rounded or not


class Finding(NamedTuple):
    """Verdict on a step: right, rounded early, carried forward (from a wrong step), wrong, open."""

    name: str
    verdict: str
    differences: tuple[str, ...]  # wrong entries, with the expected values
    diagnosis: str  # likely mistake
    blanks: tuple[str, ...] = ()  # blank entries
    wrong_inputs: tuple[str, ...] = ()  # wrong steps that this one was recomputed from
    inconsistent_with: tuple[str, ...] = ()  # wrong steps that this right value contradicts
    unread: tuple[str, ...] = ()  # entries that cannot be read, each with the reason
    note: str = ""  # how the answer was read, where not as it stands
    points: float = 1.0  # of 1: a slip costs its own step, a missing entry its share


def check_answers(
    solution: Solution, answers: Mapping[str, Any], tolerance: Any = None
) -> list[Finding]:
    """Compare a student's values of any steps with the solution.

    Every step is recomputed from the student's own earlier values: a value that follows from a
    wrong one is carried forward, one that follows from rounded ones is right, but rounded early. A
    right value that does not follow from a wrong one is right, with a note. Entries are compared at
    their written precision (0.998 to three decimals, 9.98e-1 to three digits, "1/2" exactly); "?"
    or "" is a blank. A sheet in the other convention (rows for columns) is marked as such.

    Args:
        solution: of the problem.
        answers: values by the name of the step.
        tolerance: absolute, in place of the precision that was written.

    >>> solution = rg.work.solve({"given": {"X": [[1, 0], [1, 1], [0, 2]]}, "scale": 1})
    >>> [finding] = check_answers(solution, {"N": [["6.44"], ["12.8"], ["63.0"]]})
    >>> finding.verdict
    'wrong'
    """
    _check_step_names(solution, answers)
    marker = _Marker(solution, _Sheet(solution, answers, tolerance))
    for step in solution.steps:
        marker.mark(step)
    return _merge_axis_mistakes(marker.findings)


def chosen_tolerance(tolerance: str | None, places: int | None) -> Any:
    """The tolerance that was chosen, or half a unit of so many decimal places; None: neither.

    >>> chosen_tolerance("0.1", None), chosen_tolerance(None, 2)
    ('0.1', 1/200)
    """
    if tolerance is not None and places is not None:
        raise WorkError("places: needs to be without tolerance, got both")
    return tolerance if places is None else sympy.Rational(1, 2 * 10**places)


def _check_step_names(solution: Solution, answers: Mapping[str, Any]) -> None:
    names = [step.name for step in solution.steps]
    for name, value in answers.items():
        if name in names:
            continue
        hint = suggestion(name, names)
        if name in solution.given:
            hint = "; it is given, leave it out"
        elif isinstance(value, Mapping):
            hint = f"; leave out the heading [{name}]"
        raise WorkError(f"answers: need names of steps, {', '.join(names)}, got {name!r}{hint}")


class _Sheet:
    """The answers as they are read: of each step its matrix, or why it cannot be read."""

    def __init__(self, solution: Solution, answers: Mapping[str, Any], tolerance: Any):
        self.symbols = [str(s) for value in solution.values().values() for s in value.free_symbols]
        self.tolerance = None if tolerance is None else parse_number(tolerance)
        if self.tolerance is not None and not self.tolerance.is_nonnegative:
            raise WorkError(f"tolerance: needs 0 or more, got {tolerance}")
        steps = [step for step in solution.steps if step.name in answers]
        self.read = {step.name: self._read(step, answers[step.name]) for step in steps}
        self.notes: dict[str, str] = {}
        oriented = [step for step in steps if _is_oriented(step.value)]
        if any(_is_right(self.read[step.name], step) for step in oriented):
            return
        turned = {step.name: self._read(step, _turn(answers[step.name])) for step in steps}
        if sum(_is_right(turned[step.name], step) for step in oriented) >= MIN_TURNED:
            self.read |= {name: x for name, x in turned.items() if isinstance(x, StudentAnswer)}
            self.notes = dict.fromkeys([step.name for step in oriented], TRANSPOSED)

    def _read(self, step: Step, values: Any) -> StudentAnswer | str:
        """The answer of a step, or why it cannot be read."""
        try:
            answer = read_answer(step, values, self.symbols)
        except WorkError as error:
            return str(error).removeprefix(f"{step.name}: ")
        if self.tolerance is not None:
            return answer.allowing(self.tolerance)
        return without_uninformative(answer, step.value)


def _turn(values: Any) -> Any:
    rows = values if isinstance(values, list | tuple) else []
    is_table = rows and all(isinstance(row, list | tuple) for row in rows)
    if not is_table or len({len(row) for row in rows}) != 1:
        return values
    return [list(row) for row in zip(*rows, strict=True)]


def _is_oriented(value: Matrix) -> bool:
    """Whether a matrix differs from its transpose by more than being a row or a column."""
    return 1 not in value.shape and value != value.T


def _is_right(answer: StudentAnswer | str, step: Step) -> bool:
    return isinstance(answer, StudentAnswer) and matches_answer(answer, step.value)


class _Marker:
    """Marks the steps in order, and tracks the student's values as written and unrounded."""

    def __init__(self, solution: Solution, sheet: _Sheet):
        self.solution, self.sheet, self.correct = solution, sheet, solution.values()
        self.as_written: dict[str, Matrix] = dict(solution.given)
        self.unrounded: dict[str, Matrix] = dict(solution.given)
        self.wrong_sources: dict[str, tuple[str, ...]] = {}  # step: wrong steps it depends on
        self.answers: dict[str, StudentAnswer] = {}
        self.findings: list[Finding] = []

    def mark(self, step: Step) -> None:
        """Mark one step, and record the values that later steps are recomputed from."""
        name, answer = step.name, self.sheet.read.get(step.name)
        self.unrounded[name], self.as_written[name] = map(
            self._recompute, (step, step), (self.unrounded, self.as_written)
        )
        wrong_inputs = self._wrong_ancestors(step)
        if not isinstance(answer, StudentAnswer) or len(answer.blanks) == len(step.value):
            if wrong_inputs:
                self.wrong_sources[name] = wrong_inputs
            if answer is not None:
                self.findings.append(self._open_finding(step, answer))
            return
        finding = self._judge(step, answer, wrong_inputs)
        self.answers[name] = answer
        self.as_written[name] = fill_blanks(answer, self.unrounded[name])
        if finding.note.startswith(ALREADY_SCALED.partition("{")[0]):
            self.as_written[name] = self.unrounded[name]
        self.findings.append(_with_cells(finding, answer, self.sheet.notes.get(name, "")))

    def _recompute(self, step: Step, values: Mapping[str, Matrix]) -> Matrix:
        """What follows from these values; the right ones need no computation."""
        if all(values[name] is self.correct[name] for name in step.inputs):
            return self.correct[step.name]
        return recompute_step(step, values, self.correct)

    def _judge(self, step: Step, answer: StudentAnswer, wrong_inputs: tuple[str, ...]) -> Finding:
        """The verdict on an answer; sets the value that it stands for, and where it is wrong."""
        name, right = step.name, self.correct[step.name]
        consistent = self._consistent(step, answer, wrong_inputs)
        if matches_answer(answer, right):
            return self._right_finding(step, consistent, wrong_inputs)
        if consistent is not None:
            is_carried = wrong_inputs and not self._is_early_rounding(step, answer)
            self.unrounded[name] = consistent
            if not is_carried:
                return Finding(name, ROUNDED_EARLY, (), "")
            self.wrong_sources[name] = wrong_inputs
            note, points = (TRIVIAL, 0.0) if self._is_trivial(step, consistent) else ("", 1.0)
            return Finding(
                name, CARRIED, (), "", wrong_inputs=wrong_inputs, note=note, points=points
            )
        for later in self.solution.steps:
            is_scaled = later.rule == "scale" and later.inputs[0] == name
            scaled = recompute_step(later, self.unrounded, self.correct) if is_scaled else None
            if scaled is not None and matches_answer(answer, scaled):
                return Finding(name, "right", (), "", note=ALREADY_SCALED.format(later.name))
        return self._wrong_finding(step, answer, wrong_inputs)

    def _consistent(
        self, step: Step, answer: StudentAnswer, wrong_inputs: tuple[str, ...]
    ) -> Matrix | None:
        """The value that follows from the student's and that the answer is, up to rounding."""
        for value in self._values_that_follow(step):
            if matches_answer(answer, value):
                return value
        written = self.as_written[step.name]
        if not wrong_inputs and matches_answer(answer, self.correct[step.name]):
            return None
        values = self.as_written, self.unrounded
        spread = rounding_spread(self.solution, step, *values, self.answers, answer)
        return written if matches_answer(answer, written, spread) else None

    def _is_trivial(self, step: Step, value: Matrix) -> bool:
        """Whether a slip left nothing to work out: equal entries, few of them only from zeros."""
        if len(value) == 1 or len(set(value)) > 1 or len(set(step.value)) == 1:
            return False
        computed = [
            self.as_written[name] for name in step.inputs if name not in self.solution.given
        ]
        return len(value) >= MANY or all(x == 0 for one in computed for x in one)

    def _is_early_rounding(self, step: Step, answer: StudentAnswer) -> bool:
        """Whether a value is wrong only because of rounded intermediate values."""
        right = {x.name for x in self.findings if x.verdict in ("right", ROUNDED_EARLY)}
        wrong = set(step.inputs) & set(self.wrong_sources)
        return wrong <= right and not matches_answer(answer, self.unrounded[step.name])

    def _wrong_ancestors(self, step: Step) -> tuple[str, ...]:
        """Wrong steps that this one depends on."""
        sources = [source for name in step.inputs for source in self.wrong_sources.get(name, ())]
        return tuple(dict.fromkeys(sources))

    def _values_that_follow(self, step: Step) -> Iterator[Matrix]:
        """Values that follow from the student's: unrounded, as written, or mixed."""
        yield self.unrounded[step.name]
        yield self.as_written[step.name]
        pairs = {name: (self.as_written[name], self.unrounded[name]) for name in step.inputs}
        rounded = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
        if 2 <= len(rounded) <= MAX_MIXED_INPUTS:
            for mixed in list(product(*rounded.values()))[1:-1]:
                values = {**self.unrounded, **dict(zip(rounded, mixed, strict=True))}
                yield recompute_step(step, values, self.correct)

    def _right_finding(
        self, step: Step, consistent: Matrix | None, wrong_inputs: tuple[str, ...]
    ) -> Finding:
        name, right = step.name, self.correct[step.name]
        inconsistent = wrong_inputs if consistent is None else ()
        is_close_to_right = consistent is None or all(map(is_close, consistent, right))
        if wrong_inputs and not is_close_to_right:
            # too coarse to distinguish: later steps may still follow from the wrong value
            self.unrounded[name], self.wrong_sources[name] = consistent, wrong_inputs
        else:
            self.unrounded[name] = right
        return Finding(name, "right", (), "", inconsistent_with=inconsistent)

    def _wrong_finding(
        self, step: Step, answer: StudentAnswer, wrong_inputs: tuple[str, ...]
    ) -> Finding:
        name, right = step.name, self.correct[step.name]
        expected = [self.unrounded[name], self.as_written[name], right] if wrong_inputs else [right]
        options = [(value, list_differences(answer, value)) for value in expected]
        closest, differences = min(options, key=lambda option: len(option[1]))
        candidates = (self.as_written, self.unrounded, self.correct)
        cause = diagnose(self.solution, step, answer, candidates, self.answers)
        value = fill_blanks(answer, self.unrounded[name]) if cause.value is None else cause.value
        self.unrounded[name], self.wrong_sources[name] = value, (name,)
        wrong_steps = wrong_inputs if closest != right else ()
        text = cause.description
        return Finding(name, "wrong", tuple(differences), text, wrong_inputs=wrong_steps, points=0)

    def _open_finding(self, step: Step, answer: StudentAnswer | str) -> Finding:
        if isinstance(answer, str):
            return Finding(step.name, "open", (), "", unread=(answer,), points=0)
        return _with_cells(Finding(step.name, "open", (), "", points=0), answer)


def _with_cells(finding: Finding, answer: StudentAnswer, note: str = "") -> Finding:
    """A finding with what could not be read, and the points of what was."""
    cells = [x for row in answer.cells for x in row]
    share = sum(x is not None for x in cells) / len(cells)
    unread = tuple(f"{format_index(i, j)}: {why}" for (i, j), why in answer.unread.items())
    return finding._replace(
        blanks=answer.blanks,
        unread=unread,
        note=finding.note or note,
        points=finding.points * share,
    )


# a softmax along the wrong axis shows in two steps but is one mistake
_AXIS_MISTAKES = {
    "columns were added up instead of rows": "it was divided by the column sums",
    "rows were added up instead of columns": "it was divided by the row sums",
}


def _merge_axis_mistakes(findings: list[Finding]) -> list[Finding]:
    """Report a sum along the wrong axis and the division by it as one mistake."""
    for n, (first, second) in enumerate(zip(findings, findings[1:], strict=False)):
        mistake = _AXIS_MISTAKES.get(first.diagnosis) if first.diagnosis else None
        if mistake is not None and mistake in second.diagnosis.split(" or "):
            axis = first.diagnosis.split()[0]
            findings[n] = first._replace(diagnosis=f"the softmax was taken over the {axis}")
            carried = second._replace(verdict=CARRIED, differences=(), diagnosis="", points=1.0)
            findings[n + 1] = carried
    return findings


def first_wrong(findings: Sequence[Finding]) -> Finding | None:
    """The first finding with the verdict "wrong"; None if there is none."""
    return next((finding for finding in findings if finding.verdict == "wrong"), None)


def is_complete(findings: Sequence[Finding]) -> bool:
    """Whether there are answers and none of them has blanks.

    >>> is_complete([]), is_complete([Finding("S", "open", (), "", ("(1,1)",))])
    (False, False)
    """
    return bool(findings) and not any(finding.blanks or finding.unread for finding in findings)


def count_points(findings: Sequence[Finding], steps: Sequence[str] = ()) -> tuple[float, int]:
    """Points and their maximum: one per step that was answered or asked for.

    >>> count_points([Finding("S", "right", (), "")], ["S", "A"])
    (1.0, 2)
    """
    return sum(one.points for one in findings), len({*steps, *(one.name for one in findings)})
