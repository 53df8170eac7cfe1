"""A student's values beside the right ones: the first wrong step, what follows from it, and why."""

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from regard.errors import WorkError, nearest
from regard.work.marking.answers import (
    StudentAnswer,
    fill_blanks,
    is_close,
    is_truncated,
    jitter_rounding,
    list_differences,
    matches_answer,
    matches_entry,
    matches_within,
    parse_answer,
)
from regard.work.marking.diagnoses import Diagnosis, diagnose, recompute_step
from regard.work.rules import Matrix
from regard.work.solution import Solution, Step

TRUNCATION = "the decimals were cut off, not rounded"
EARLY_ROUNDING = "the values before it were rounded"
ROUNDING_SAMPLES = 6  # ways of rounding that are tried
MAX_MIXED_INPUTS = 3  # inputs of one step that may each be taken rounded or in full


class Finding(NamedTuple):
    """What became of one step: right, carried forward from a wrong one, wrong, or open.

    >>> Finding("S", "right", (), "").verdict
    'right'
    """

    name: str
    verdict: str
    differences: tuple[str, ...]  # entries that differ, with what they should be
    diagnosis: str  # a likely cause of what is wrong
    blanks: tuple[str, ...] = ()  # entries without a number
    wrong_inputs: tuple[
        str, ...
    ] = ()  # wrong steps whose written values the step was recomputed from
    inconsistent_with: tuple[str, ...] = ()  # wrong steps that a right value does not follow from


def check_answers(solution: Solution, answers: Mapping[str, Any]) -> list[Finding]:
    """Compare values for any of a solution's steps with what they should be.

    Every step is recomputed from the student's own earlier values. A value that follows from a
    wrong one is carried forward; one that does not is compared with what would follow. A right
    value that does not follow from the wrong one before it is right, and that is said.

    Each entry is held to its own written precision (0.998 to three decimals, 9.98e-1 to three
    digits, "1/2" exactly). An entry may be left open as "?" or "".

    >>> from regard.work.families.attention import solve_attention
    >>> solution = solve_attention({"X": [[1, 0], [1, 1], [0, 2]]}, scale=1)
    >>> [found.verdict for found in check_answers(solution, {"N": [["6.44", 1, 1]]})]
    Traceback (most recent call last):
        ...
    regard.errors.WorkError: N: needs 3 rows of 1 numbers, got 1 of 3
    >>> [found.verdict for found in check_answers(solution, {"N": [["6.44"], ["12.8"], ["63.0"]]})]
    ['wrong']
    """
    _need_steps(solution, answers)
    symbols = [str(s) for value in solution.values().values() for s in value.free_symbols]
    paper = _Paper(solution, answers)
    for step in solution.steps:
        told = None
        if step.name in answers:
            told = parse_answer(step, answers[step.name], symbols)
        paper.mark(step, told)
    return _as_one(paper.findings)


def _need_steps(solution: Solution, answers: Mapping[str, Any]) -> None:
    names = [step.name for step in solution.steps]
    for name, value in answers.items():
        if name in names:
            continue
        hint = nearest(name, names)
        if name in solution.given:
            hint = "; it is given, leave it out"
        elif isinstance(value, Mapping):
            hint = f"; leave out the heading [{name}]"
        raise WorkError(f"answers: need names of steps, {', '.join(names)}, got {name!r}{hint}")


class _Paper:
    """One student's values, step by step: as written, and with the digits they may have kept."""

    def __init__(self, solution: Solution, answers: Mapping[str, Any]):
        self.solution, self.answers, self.right = solution, answers, solution.values()
        self.own: dict[str, Matrix] = dict(solution.given)  # as it was written, rounded
        self.full: dict[str, Matrix] = dict(solution.given)  # with all the digits that were kept
        self.spoilt: dict[str, tuple[str, ...]] = {}  # what comes from wrong steps, and from which
        self.written: dict[str, StudentAnswer] = {}
        self.findings: list[Finding] = []

    def mark(self, step: Step, told: StudentAnswer | None) -> None:
        """Compare one step, and keep what the later ones follow from."""
        name, right = step.name, self.right[step.name]
        self.full[name], self.own[name] = (
            recompute_step(step, values, self.right) for values in (self.full, self.own)
        )
        wrong_before = self._wrong_before(step)
        if told is None or told.is_blank:
            if wrong_before:
                self.spoilt[name] = wrong_before
            if told is not None:
                self.findings.append(Finding(name, "open", (), "", told.blanks))
            return
        self.written[name] = told
        followed = next((x for x in self._following(step) if matches_answer(told, x)), None)
        if followed is None and wrong_before:
            followed = self._followed_nearly(step, told, wrong_before)
        if matches_answer(told, right):
            found = self._is_right(step, followed, wrong_before)
        elif followed is None:
            found = self._is_wrong(step, told, wrong_before)
        elif wrong_before and not self._is_early_rounding(step, told):
            found = Finding(name, "carried forward", (), "", wrong_inputs=wrong_before)
            self.full[name], self.spoilt[name] = followed, wrong_before
        else:
            found = Finding(name, "wrong", tuple(list_differences(told, right)), EARLY_ROUNDING)
            self.spoilt[name] = (name,)
        self.findings.append(found._replace(blanks=told.blanks))
        self.own[name] = fill_blanks(told, self.full[name] if followed is None else followed)

    def _is_early_rounding(self, step: Step, told: StudentAnswer) -> bool:
        """Whether a value is off only because right ones before it were taken as written."""
        right = {found.name for found in self.findings if found.verdict == "right"}
        taken = [name for name in step.inputs if name in self.spoilt]
        return not matches_answer(told, self.full[step.name]) and all(
            name in right for name in taken
        )

    def _wrong_before(self, step: Step) -> tuple[str, ...]:
        """The wrong steps, as written, that this one takes its values from."""
        found = [one for name in step.inputs for one in self.spoilt.get(name, ())]
        return tuple(dict.fromkeys(found))

    def _following(self, step: Step) -> Iterator[Matrix]:
        """What follows from the student's values: in full, as written, or some so and some so."""
        yield self.full[step.name]
        yield self.own[step.name]
        differ = [one for one in dict.fromkeys(step.inputs) if self.own[one] != self.full[one]]
        if 2 <= len(differ) <= MAX_MIXED_INPUTS:
            for chosen in list(product((self.own, self.full), repeat=len(differ)))[1:-1]:
                mixed = {one: values[one] for one, values in zip(differ, chosen, strict=True)}
                yield recompute_step(step, {**self.full, **mixed}, self.right)

    def _followed_nearly(
        self, step: Step, told: StudentAnswer, wrong_before: tuple[str, ...]
    ) -> Matrix | None:
        """What follows from wrong values, where the student kept more of their digits than written.

        What a wrong 0.37 was before it was rounded is unknown. Shifted by half of its last place,
        up or down, it shows how far the later steps may move.
        """
        full, moved = self.full[step.name], []
        for seed in range(ROUNDING_SAMPLES):
            values, signs = dict(self.full), random.Random(seed)
            for early in self.solution.steps[: self.solution.steps.index(step)]:
                if early.name in wrong_before:
                    values[early.name] = jitter_rounding(
                        values[early.name], self.written[early.name], signs
                    )
                elif set(self.spoilt.get(early.name, ())) & set(wrong_before):
                    values[early.name] = recompute_step(early, values, self.right)
            moved.append(recompute_step(step, values, self.right))
        return full if matches_within(told, full, moved) else None

    def _is_right(
        self, step: Step, followed: Matrix | None, wrong_before: tuple[str, ...]
    ) -> Finding:
        name, right = step.name, self.right[step.name]
        against = wrong_before if followed is None else ()
        if wrong_before and followed is not None and not _same(followed, right):
            # too coarse to tell: later steps may still follow from the wrong value
            self.full[name], self.spoilt[name] = followed, wrong_before
        else:
            self.full[name] = right
        return Finding(name, "right", (), "", inconsistent_with=against)

    def _is_wrong(self, step: Step, told: StudentAnswer, wrong_before: tuple[str, ...]) -> Finding:
        name, right = step.name, self.right[step.name]
        expected = [self.full[name], self.own[name], right] if wrong_before else [right]
        differences = [list_differences(told, one) for one in expected]
        nearest_one = min(range(len(expected)), key=lambda n: len(differences[n]))
        by = wrong_before if expected[nearest_one] != right else ()
        cut = next((one for one in expected if _all_truncated(told, one)), None)
        if cut is not None:
            why = Diagnosis(TRUNCATION, cut)
        else:
            maps = (self.own, self.full, self.right)
            why = diagnose(self.solution, step, told, maps, self.answers)
        self.full[name] = fill_blanks(told, self.full[name]) if why.value is None else why.value
        self.spoilt[name] = (name,)
        return Finding(
            name, "wrong", tuple(differences[nearest_one]), why.description, wrong_inputs=by
        )


def _same(a: Matrix, b: Matrix) -> bool:
    return all(is_close(x, y) for x, y in zip(a, b, strict=True))


def _all_truncated(told: StudentAnswer, want: Matrix) -> bool:
    """Whether all that is wrong with a matrix is that decimals were cut off."""
    cells = [(x, want[i, j]) for i, j, x in told.entries() if x is not None]
    wrong = [(x, right) for x, right in cells if not matches_entry(x, right)]
    return bool(wrong) and all(is_truncated(x, right) for x, right in wrong)


# a softmax along the wrong axis shows in two steps, and is one slip
_AXIS = {
    "columns were added up instead of rows": "it was divided by the column sums",
    "rows were added up instead of columns": "it was divided by the row sums",
}


def _as_one(findings: list[Finding]) -> list[Finding]:
    """A sum along the wrong axis and the division by it, told as one slip."""
    for n, (first, second) in enumerate(zip(findings, findings[1:], strict=False)):
        if first.diagnosis and _AXIS.get(first.diagnosis) == second.diagnosis:
            axis = first.diagnosis.split()[0]
            findings[n] = first._replace(diagnosis=f"the softmax was taken over the {axis}")
            findings[n + 1] = second._replace(
                verdict="carried forward", differences=(), diagnosis=""
            )
    return findings


def first_wrong(findings: Sequence[Finding]) -> Finding | None:
    """The first step that is wrong in itself.

    >>> first_wrong([Finding("S", "right", (), ""), Finding("A", "wrong", (), "")]).name
    'A'
    """
    return next((found for found in findings if found.verdict == "wrong"), None)


def is_complete(findings: Sequence[Finding]) -> bool:
    """Whether there is an answer, and nothing that the sheet names is left open.

    >>> is_complete([]), is_complete([Finding("S", "open", (), "", ("(1,1)",))])
    (False, False)
    """
    return bool(findings) and not any(found.blanks for found in findings)
