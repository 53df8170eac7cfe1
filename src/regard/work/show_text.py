"""A solution to read in a terminal, and what became of an answer, in plain text."""

from collections.abc import Callable

import sympy

from regard.work.check import Finding, first_wrong
from regard.work.numbers import decimal, is_simple
from regard.work.rules import Matrix, rule
from regard.work.solution import Solution, Step


def as_text(solution: Solution, digits: int = 6) -> str:
    """The solution in plain text: each step with its formula, one entry put in, and the result.

    >>> from regard.work import attention
    >>> print(as_text(attention({"X": [[1, 0], [0, 2]]}, scale=1)).splitlines()[0])
    Given
    """
    parts = ["Given"]
    parts += [_indented(f"{name} = ", _grid(value, str)) for name, value in solution.given.items()]
    for n, step in enumerate(solution.steps, 1):
        parts.append(f"\n{n}. {step.says[0].upper()}{step.says[1:]}\n   {step.formula}")
        if entry := worked_entry(solution, step):
            parts.append(f"   {entry}")
            if step.value.shape == (1, 1) and digits <= 6:
                continue  # the entry is all there is
        if all(map(is_simple, step.value)):
            parts.append(_indented(f"   {step.name} = ", _grid(step.value, str)))
        if not all(x.is_Rational or x.is_infinite for x in step.value):
            told = _grid(step.value, lambda x: decimal(x, digits))
            parts.append(_indented(f"   {step.name} ≈ ", told))
    if solution.remarks:
        parts += ["\nWhat follows", *(f" - {one}" for one in solution.remarks)]
    return "\n".join(parts)


def worked_entry(solution: Solution, step: Step) -> str:
    """The first entry with its numbers put in; empty where there is nothing to put in.

    >>> from regard.work import attention
    >>> worked = attention({"X": [[1, 0], [0, 2]]}, scale=1)
    >>> worked_entry(worked, worked.steps[0])
    'S₁₁ = 1·1 + 0·0 = 1'
    """
    tell = rule(step.rule).entry
    if tell is None:
        return ""
    values = solution.values()
    put_in = tell(0, 0, *(values[name] for name in step.takes))
    if len(put_in) > 160:  # by now a formula that nobody reads
        return ""
    result = step.value[0, 0]
    equals = str(result) if is_simple(result) else f"{decimal(result)} …"
    name = step.name if step.value.shape == (1, 1) else f"{step.name}₁₁"
    return f"{name} = {put_in} = {equals}"


def _grid(value: Matrix, tell: Callable[[sympy.Expr], str]) -> list[str]:
    cells = [[tell(x).replace("-oo", "-inf") for x in value.row(i)] for i in range(value.rows)]
    wide = [max(len(row[j]) for row in cells) for j in range(value.cols)]
    return [
        "[" + "  ".join(x.rjust(w) for x, w in zip(row, wide, strict=True)) + "]" for row in cells
    ]


def _indented(head: str, rows: list[str]) -> str:
    return "\n".join((head if n == 0 else " " * len(head)) + row for n, row in enumerate(rows))


def findings_as_text(findings: list[Finding]) -> str:
    """What became of an answer, in words; the first wrong step is named.

    >>> findings_as_text([Finding("S", "right", (), "")])
    'S: right\\nEvery value that was given is right.'
    """
    lines = []
    for found in findings:
        lines.append(f"{found.name}: {found.verdict}")
        lines += [f"   {entry}" for entry in found.wrong]
        if found.why:
            lines.append(f"   likely: {found.why}")
    wrong = first_wrong(findings)
    if wrong is None:
        lines.append("Every value that was given is right.")
    else:
        lines.append(f"The first wrong step is {wrong.name}.")
    return "\n".join(lines)
