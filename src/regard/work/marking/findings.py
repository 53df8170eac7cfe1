"""Marking of one student's answers: verdict and diagnosis per step."""

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from regard.errors import WorkError, suggestion
from regard.work.marking.answers import (
    StudentAnswer,
    fill_blanks,
    is_close,
    is_truncated,
    jitter_rounding,
    list_differences,
    matches_answer,
    matches_within,
    parse_answer,
    wrong_entries,
)
from regard.work.marking.diagnoses import Diagnosis, diagnose, recompute_step
from regard.work.rules import Matrix
from regard.work.solution import Solution, Step

TRUNCATION = "the decimals were cut off, not rounded"
EARLY_ROUNDING = "the values before it were rounded"
ROUNDING_SAMPLES = 6
MAX_MIXED_INPUTS = 3  # inputs that may each be rounded or not


class Finding(NamedTuple):
    """Verdict on one step: right, carried forward (follows from a wrong step), wrong, or open."""

    name: str
    verdict: str
    differences: tuple[str, ...]  # wrong entries, with the expected values
    diagnosis: str  # likely mistake
    blanks: tuple[str, ...] = ()  # blank entries
    wrong_inputs: tuple[str, ...] = ()  # wrong steps that this one was recomputed from
    inconsistent_with: tuple[str, ...] = ()  # wrong steps that this right value contradicts


def check_answers(solution: Solution, answers: Mapping[str, Any]) -> list[Finding]:
    """Compare a student's values of any steps with the solution.

    Every step is recomputed from the student's own earlier values: a value that follows from a
    wrong one is carried forward. A right value that does not follow from a wrong one is right, with
    a note. Entries are compared at their written precision (0.998 to three decimals, 9.98e-1 to
    three digits, "1/2" exactly); "?" or "" is a blank.

    >>> solution = rg.work.solve({"given": {"X": [[1, 0], [1, 1], [0, 2]]}, "scale": 1})
    >>> [finding] = check_answers(solution, {"N": [["6.44"], ["12.8"], ["63.0"]]})
    >>> finding.verdict
    'wrong'
    """
    _check_step_names(solution, answers)
    symbols = [str(s) for value in solution.values().values() for s in value.free_symbols]
    marker = _Marker(solution, answers)
    for step in solution.steps:
        is_answered = step.name in answers
        marker.mark(step, parse_answer(step, answers[step.name], symbols) if is_answered else None)
    return _merge_axis_mistakes(marker.findings)


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


class _Marker:
    """Marks the steps in order, and tracks the student's values as written and unrounded."""

    def __init__(self, solution: Solution, answers: Mapping[str, Any]):
        self.solution, self.answers, self.correct = solution, answers, solution.values()
        self.as_written: dict[str, Matrix] = dict(solution.given)
        self.unrounded: dict[str, Matrix] = dict(solution.given)
        self.wrong_sources: dict[str, tuple[str, ...]] = {}  # step: wrong steps it depends on
        self.parsed: dict[str, StudentAnswer] = {}
        self.findings: list[Finding] = []

    def mark(self, step: Step, answer: StudentAnswer | None) -> None:
        """Mark one step, and record the values that later steps are recomputed from."""
        name, right = step.name, self.correct[step.name]
        self.unrounded[name], self.as_written[name] = (
            recompute_step(step, values, self.correct)
            for values in (self.unrounded, self.as_written)
        )
        wrong_inputs = self._wrong_ancestors(step)
        if answer is None or len(answer.blanks) == len(right):
            if wrong_inputs:
                self.wrong_sources[name] = wrong_inputs
            if answer is not None:
                self.findings.append(Finding(name, "open", (), "", answer.blanks))
            return
        self.parsed[name] = answer
        matching = (x for x in self._consistent_values(step) if matches_answer(answer, x))
        consistent = next(matching, None)
        if consistent is None and wrong_inputs:
            consistent = self._consistent_within_rounding(step, answer, wrong_inputs)
        if matches_answer(answer, right):
            finding = self._right_finding(step, consistent, wrong_inputs)
        elif consistent is None:
            finding = self._wrong_finding(step, answer, wrong_inputs)
        elif wrong_inputs and not self._is_early_rounding(step, answer):
            finding = Finding(name, "carried forward", (), "", wrong_inputs=wrong_inputs)
            self.unrounded[name], self.wrong_sources[name] = consistent, wrong_inputs
        else:
            finding = Finding(name, "wrong", tuple(list_differences(answer, right)), EARLY_ROUNDING)
            self.wrong_sources[name] = (name,)
        self.findings.append(finding._replace(blanks=answer.blanks))
        defaults = self.unrounded[name] if consistent is None else consistent
        self.as_written[name] = fill_blanks(answer, defaults)

    def _is_early_rounding(self, step: Step, answer: StudentAnswer) -> bool:
        """Whether a value is wrong only because of rounded intermediate values."""
        right = {finding.name for finding in self.findings if finding.verdict == "right"}
        wrong = set(step.inputs) & set(self.wrong_sources)
        return wrong <= right and not matches_answer(answer, self.unrounded[step.name])

    def _wrong_ancestors(self, step: Step) -> tuple[str, ...]:
        """Wrong steps that this one depends on."""
        sources = [source for name in step.inputs for source in self.wrong_sources.get(name, ())]
        return tuple(dict.fromkeys(sources))

    def _consistent_values(self, step: Step) -> Iterator[Matrix]:
        """Values that follow from the student's: unrounded, as written, or mixed."""
        yield self.unrounded[step.name]
        yield self.as_written[step.name]
        pairs = {name: (self.as_written[name], self.unrounded[name]) for name in step.inputs}
        rounded = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
        if 2 <= len(rounded) <= MAX_MIXED_INPUTS:
            for mixed in list(product(*rounded.values()))[1:-1]:
                values = {**self.unrounded, **dict(zip(rounded, mixed, strict=True))}
                yield recompute_step(step, values, self.correct)

    def _consistent_within_rounding(
        self, step: Step, answer: StudentAnswer, wrong_inputs: tuple[str, ...]
    ) -> Matrix | None:
        """The value that follows from wrong ones, within the rounding of these.

        The unrounded value of a wrong 0.37 is unknown: shifting it by half a unit of its last digit
        shows how far later steps may vary.
        """
        full, samples = self.unrounded[step.name], []
        for seed in range(ROUNDING_SAMPLES):
            values, signs = dict(self.unrounded), random.Random(seed)
            for earlier in self.solution.steps[: self.solution.steps.index(step)]:
                name = earlier.name
                if name in wrong_inputs:
                    values[name] = jitter_rounding(values[name], self.parsed[name], signs)
                elif set(self.wrong_sources.get(name, ())) & set(wrong_inputs):
                    values[name] = recompute_step(earlier, values, self.correct)
            samples.append(recompute_step(step, values, self.correct))
        return full if matches_within(answer, full, samples) else None

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
        truncated = next((value for value in expected if _all_truncated(answer, value)), None)
        if truncated is not None:
            diagnosis = Diagnosis(TRUNCATION, truncated)
        else:
            candidates = (self.as_written, self.unrounded, self.correct)
            diagnosis = diagnose(self.solution, step, answer, candidates, self.answers)
        value = diagnosis.value
        self.unrounded[name] = fill_blanks(answer, self.unrounded[name]) if value is None else value
        self.wrong_sources[name] = (name,)
        wrong_steps = wrong_inputs if closest != right else ()
        text = diagnosis.description
        return Finding(name, "wrong", tuple(differences), text, wrong_inputs=wrong_steps)


def _all_truncated(answer: StudentAnswer, expected: Matrix) -> bool:
    """Whether every wrong entry is merely truncated."""
    wrong = list(wrong_entries(answer, expected))
    return bool(wrong) and all(is_truncated(x, right) for _, _, x, right in wrong)


# a softmax along the wrong axis shows in two steps but is one mistake
_AXIS_MISTAKES = {
    "columns were added up instead of rows": "it was divided by the column sums",
    "rows were added up instead of columns": "it was divided by the row sums",
}


def _merge_axis_mistakes(findings: list[Finding]) -> list[Finding]:
    """Report a sum along the wrong axis and the division by it as one mistake."""
    for n, (first, second) in enumerate(zip(findings, findings[1:], strict=False)):
        if first.diagnosis and _AXIS_MISTAKES.get(first.diagnosis) == second.diagnosis:
            axis = first.diagnosis.split()[0]
            findings[n] = first._replace(diagnosis=f"the softmax was taken over the {axis}")
            carried = second._replace(verdict="carried forward", differences=(), diagnosis="")
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
    return bool(findings) and not any(finding.blanks for finding in findings)
