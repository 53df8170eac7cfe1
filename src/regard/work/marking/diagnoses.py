"""Causes of wrong values: wrong rules are run; those that give the written numbers are named."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import sympy

from regard.errors import RegardError
from regard.work.exact import format_decimal
from regard.work.marking.answers import (
    is_truncated,
    matches_answer,
    matches_entry,
    recompute_step,
    wrong_entries,
)
from regard.work.marking.reading import StudentAnswer, format_index
from regard.work.marking.rounding import unanswered_ancestors
from regard.work.rules import M, Matrix, get_rule
from regard.work.solution import Solution, Step, run_checked

Values = Mapping[str, Matrix]
MAX_RECOMPUTED_STEPS = 1_500  # bounds the search per wrong step
MAX_OTHER_INPUTS = 40  # values that may have been used in place of an input
MIN_DIGITS = 4  # written in all, before one of so many is blamed
MAX_TIES = 3
TRUNCATION = "the decimals were cut off, not rounded"


class Diagnosis(NamedTuple):
    """Description of a mistake and the unrounded value it gives; empty if none is known."""

    description: str = ""
    value: Matrix = None  # None where it is not known


def diagnose(
    solution: Solution,
    step: Step,
    answer: StudentAnswer,
    candidates: Sequence[Values],
    answered_steps: Collection[str],
) -> Diagnosis:
    """The mistakes that give exactly these values, in one sentence with "or" between them.

    Mistakes in the step itself come before those in steps that were not handed in.

    Args:
        solution: of the problem.
        step: that is wrong.
        answer: what was written for it.
        candidates: values the student may have started from, the most likely first: as written,
            unrounded, and correct.
        answered_steps: names of the steps with an answer.
    """
    search = _Search(solution, step, answer, candidates, answered_steps)
    diagnoses: list[Diagnosis] = []
    for find in (
        search.in_step(_mistakes_of_rule),
        search.in_copying(),
        search.in_earlier_steps(_mistakes_of_rule),
        search.in_step(_mistaken_peers),
        search.in_names(),
        search.in_earlier_steps(_mistaken_peers),
        search.in_other_inputs(),
    ):
        diagnoses = _distinct(find)
        if diagnoses:
            break
    if not diagnoses:
        return Diagnosis()
    return Diagnosis(" or ".join(one.description for one in diagnoses), diagnoses[0].value)


def mistakes_in_step(solution: Solution, step: Step) -> list[tuple[str, Matrix]]:
    """What common mistakes in a step give, from right inputs: descriptions and values.

    >>> solution = rg.work.solve({"given": {"X": [[1, 2]]}, "scale": 1})
    >>> mistakes_in_step(solution, solution.steps[1])[0][0]
    'the exponential was left out'
    """
    values = solution.values()
    peers = (
        one
        for one in _mistaken_peers(solution, step, values)
        if one.description.partition(" ")[0] in solution.given
    )
    diagnoses = (*_mistakes_of_rule(solution, step, values), *peers)
    fit = (one for one in diagnoses if one.value.shape == step.value.shape)
    return [(one.description, one.value) for one in fit if one.value != step.value]


def _distinct(diagnoses: Iterable[Diagnosis]) -> list[Diagnosis]:
    """The first few of different descriptions."""
    result: dict[str, Diagnosis] = {}
    for one in diagnoses:
        result.setdefault(one.description, one)
        if len(result) == MAX_TIES:
            break
    return list(result.values())


class _Search(NamedTuple):
    solution: Solution
    step: Step
    answer: StudentAnswer
    candidates: Sequence[Values]
    answered_steps: Collection[str]

    def in_step(self, mistakes: "Mistakes") -> Iterator[Diagnosis]:
        """Mistakes in the step itself."""
        for values in self.candidates:
            wrong = mistakes(self.solution, self.step, values)
            if diagnoses := [one for one in wrong if self._is_written(one)]:
                yield from diagnoses
                return

    def in_copying(self) -> Iterator[Diagnosis]:
        """Cut-off decimals, a transposed result, signs."""
        for values in self.candidates:
            expected = recompute_step(self.step, values, self.solution.values())
            wrong = list(wrong_entries(self.answer, expected))
            if wrong and all(is_truncated(x, right) for _, _, x, right in wrong):
                yield Diagnosis(TRUNCATION, expected)
            elif expected.rows == expected.cols and matches_answer(self.answer, M(expected.T)):
                yield Diagnosis("rows and columns are swapped", M(expected.T))
            elif wrong and all(x.value and matches_entry(x, -right) for _, _, x, right in wrong):
                places = ", ".join(format_index(i, j) for i, j, *_ in wrong)
                yield Diagnosis(f"a sign, in {places}")
            else:
                continue
            return

    def in_other_inputs(self) -> Iterator[Diagnosis]:
        """Any other matrix in place of an input, where the digits rule out a coincidence."""
        scale = max(
            (abs(float(x)) for x in self.step.value if x.is_number and x.is_finite), default=1
        )
        if _digits_written(self.answer, scale) < MIN_DIGITS:
            return
        run = get_rule(self.step.rule).run
        for values in self.candidates:
            wrong = _with_other_inputs(self.solution, self.step, values, run, peers=False)
            if diagnoses := [one for one in wrong if self._is_written(one)]:
                yield from diagnoses
                return

    def in_names(self) -> Iterator[Diagnosis]:
        """Matrices taken for others of like names, all through: W_r and U_r for W_z and U_z."""
        between = unanswered_ancestors(self.solution, self.step, self.answered_steps)
        steps = [*between, self.step]
        computed = {one.name for one in between}
        sources = {name for one in steps for name in one.inputs} - computed
        for values in self.candidates:
            diagnoses = False
            for renamed in _renamings(sources, values):
                changed = dict(values) | {old: values[new] for old, new in renamed.items()}
                for one in steps:
                    changed[one.name] = recompute_step(one, changed, values)
                if matches_answer(self.answer, changed[self.step.name]):
                    diagnoses, old = True, " and ".join(renamed)
                    text = f"{' and '.join(renamed.values())} were used for {old}"
                    yield Diagnosis(text, changed[self.step.name])
            if diagnoses:
                return

    def in_earlier_steps(self, mistakes: "Mistakes") -> Iterator[Diagnosis]:
        """Mistakes in earlier, unanswered steps from which these values follow."""
        count = 1 if self.candidates[0] == self.candidates[-1] else 2
        between = unanswered_ancestors(self.solution, self.step, self.answered_steps)
        for values in self.candidates[:count]:
            recomputed, is_found = 0, False
            for n, earlier in reversed(list(enumerate(between))):
                for description, value in mistakes(self.solution, earlier, values):
                    recomputed += len(between) - n
                    if recomputed > MAX_RECOMPUTED_STEPS:
                        return
                    changed = {**values, earlier.name: value}
                    for later in between[n + 1 :]:
                        changed[later.name] = recompute_step(later, changed, values)
                    result = recompute_step(self.step, changed, values)
                    if matches_answer(self.answer, result):
                        is_found = True
                        yield Diagnosis(f"{description}, in {earlier.name}", result)
            if is_found:
                return

    def _is_written(self, one: Diagnosis) -> bool:
        is_shaped = one.value.shape == self.step.value.shape
        return is_shaped and matches_answer(self.answer, one.value)


Mistakes = Callable[[Solution, Step, Values], Iterator[Diagnosis]]


def _mistakes_of_rule(solution: Solution, step: Step, values: Values) -> Iterator[Diagnosis]:
    """What a step gives by known mistakes over several steps, those of its rule, other scales."""
    rule, inputs = get_rule(step.rule), [values[name] for name in step.inputs]
    known = [Diagnosis(text, x) for name, text, x in solution.mistakes if name == step.name]
    of_rule = [
        one
        for description, mistaken in rule.mistakes.items()
        for one in _try(step, description.format(*step.inputs), mistaken, inputs)
    ]
    yield from known
    if step.rule != "scale":
        yield from _without(known, of_rule)
        return
    yield from of_rule  # √4 for √2 may be the scale, applied twice: both are said
    others = (
        one
        for description, scale in _other_scales(solution, step, values)
        for one in _try(step, description, rule.run, [inputs[0], M([[scale]])])
    )
    yield from others


def _mistaken_peers(solution: Solution, step: Step, values: Values) -> Iterator[Diagnosis]:
    """What a step gives with inputs that are named alike, or swapped."""
    return _with_other_inputs(solution, step, values, get_rule(step.rule).run)


def _without(known: Sequence[Diagnosis], more: Iterable[Diagnosis]) -> Iterator[Diagnosis]:
    """Those that are not the same numbers as a known one, which has the better words."""
    return (one for one in more if all(one.value != other.value for other in known))


def _try(
    step: Step, description: str, run: Callable[..., Matrix], inputs: Sequence[Matrix]
) -> Iterator[Diagnosis]:
    try:
        result = run_checked(step.rule, run, *inputs)
    except RegardError:
        return
    if result.shape == step.value.shape:
        yield Diagnosis(description, result)


def _other_scales(solution: Solution, step: Step, values: Values) -> Iterator[tuple[str, Any]]:
    """Other numbers that the scores are scaled by: the model's width, a rounded β."""
    scale = values[step.inputs[1]][0, 0]
    if not scale.is_number or scale.is_infinite or not scale:
        return
    widths = {x.cols for x in solution.given.values()} | {x.rows for x in solution.given.values()}
    for width in sorted(widths - {1}):
        if scale != 1 / sympy.sqrt(width):
            yield f"it was divided by √{width} instead", 1 / sympy.sqrt(width)
        if scale != sympy.Rational(1, width):
            yield f"it was divided by {width}, without the root", sympy.Rational(1, width)
    if scale.is_Rational:
        return
    for digits in (1, 2, 3):
        rounded = sympy.Rational(format_decimal(scale, digits))
        divisor = sympy.Rational(format_decimal(1 / scale, digits))
        yield f"the scale was rounded to {format_decimal(rounded)}", rounded
        if divisor != 1:  # which would leave it out
            yield f"the divisor was rounded to {format_decimal(divisor)}", 1 / divisor


def _with_other_inputs(
    solution: Solution, step: Step, values: Values, run: Callable[..., Matrix], peers: bool = True
) -> Iterator[Diagnosis]:
    """The rule with another matrix of the same shape as an input, and with two inputs swapped.

    Peers are named alike, as W_Q and W_K or z_1 and r_1 are; the others are many more.
    """
    names, inputs = step.inputs, [values[name] for name in step.inputs]
    earlier = solution.steps[: solution.steps.index(step)]
    known = [*solution.given, *(one.name for one in reversed(earlier))]
    for n, name in enumerate(names):
        others = [x for x in known if x not in names and _are_peers(x, name) == peers]
        for other in others[:MAX_OTHER_INPUTS]:
            if values[other].shape == inputs[n].shape and values[other] != inputs[n]:
                changed = [*inputs[:n], values[other], *inputs[n + 1 :]]
                yield from _try(step, f"{other} was used for {name}", run, changed)
        for m in range(n if peers else 0):
            if inputs[m].shape == inputs[n].shape and inputs[m] != inputs[n]:
                swapped = list(inputs)
                swapped[m], swapped[n] = inputs[n], inputs[m]
                yield from _try(step, f"{names[m]} and {name} were swapped", run, swapped)


def _renamings(sources: Collection[str], values: Values) -> Iterator[dict[str, str]]:
    """Names in place of those that a value is computed from: another index, or two swapped."""
    ends = {name: name.rpartition("_")[::2] for name in sorted(sources)}
    for old in sorted({end for _, end in ends.values()}):
        for new in sorted({name.rpartition("_")[2] for name in values} - {old}):
            pairs = {name: f"{start}_{new}" for name, (start, end) in ends.items() if end == old}
            if len(pairs) > 1 and all(_fits(values, *pair) for pair in pairs.items()):
                yield pairs
    for a, b in combinations(ends, 2):
        if ends[a][1] == ends[b][1] and _fits(values, a, b):
            yield {a: b, b: a}


def _fits(values: Values, old: str, new: str) -> bool:
    return new in values and values[new].shape == values[old].shape and values[new] != values[old]


def _are_peers(a: str, b: str) -> bool:
    return any(x == y for x, y in zip(a.rpartition("_")[::2], b.rpartition("_")[::2], strict=True))


def _digits_written(answer: StudentAnswer, scale: float) -> float:
    """Significant digits that an answer has in all, which a coincidence would have to match."""
    total = 0.0
    for *_, x in answer.entries():
        if x is not None and x.value.is_number and x.value.is_finite:
            size = max(abs(float(x.value)), scale)
            total += math.log10(max(size / (2 * float(x.tolerance)), 1)) if x.tolerance else 1
    return total
