"""A class as a Moodle quiz: Cloze questions with tolerances and feedback on known mistakes."""

import math
from fractions import Fraction
from html import escape
from xml.etree import ElementTree

from regard.files import add_quiz_text, new_quiz
from regard.work.classroom.problems import Assignment, Class
from regard.work.classroom.sheets import definitions, heading
from regard.work.making import chosen_options
from regard.work.marking.diagnoses import mistakes_in_step
from regard.work.rules import Matrix
from regard.work.solution import Step

SHARE = 0.01  # tolerance of a number: three digits
EXACT = 0.001  # of a whole one
PARTIAL = 50  # percent for a mistake that is known


def class_quiz(one: Class) -> ElementTree.Element:
    """The problems of a class as variants: Cloze questions of one category, without names."""
    quiz = new_quiz(heading(one).replace("/", "//"))
    for x in one.assignments:
        question = ElementTree.SubElement(quiz, "question", type="cloze")
        code = f"{one.code}-{x.number}"
        add_quiz_text(question, "name", f"{heading(one)} {code}")
        add_quiz_text(question, "questiontext", _question(x, code), html=True)
        add_quiz_text(question, "generalfeedback", "", html=True)
        for name, value in {"penalty": "0.3333333", "hidden": "0"}.items():
            ElementTree.SubElement(question, name).text = value
    return quiz


def _question(x: Assignment, code: str) -> str:
    given = "".join(f"<td>{name} =</td><td>{_matrix(y)}</td>" for name, y in _cells(x).items())
    known = "".join(
        f"<li>{escape(y.text)}{f': {escape(words)}' if words else ''}</li>"
        for y, words in definitions(x)
    )
    weights = field_weights(x)
    steps = []
    for step in x.steps:
        wrong = list(mistakes_in_step(x.exercise.solution, step))
        fields = [
            [cloze_field(step, i, j, weights[step.name], wrong) for j in range(step.value.cols)]
            for i in range(step.value.rows)
        ]
        title = f"{escape(step.formula)}, {escape(step.title)}"
        steps.append(f"<p>{title} ({x.points[step.name]:g}):</p>{_matrix(fields)}")
    return (
        f"<p>Problem {code}</p><table><tbody><tr>{given}</tr></tbody></table>"
        f"<p>{escape(chosen_options(x.exercise))}</p><ul>{known}</ul>"
        f"<p>Answer with at least three digits.</p>{''.join(steps)}"
    )


def _cells(x: Assignment) -> dict[str, list[list[str]]]:
    given = x.exercise.solution.given.items()
    return {
        escape(name): [[escape(str(cell)) for cell in value.row(i)] for i in range(value.rows)]
        for name, value in given
    }


def _matrix(rows: list[list[str]]) -> str:
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<table border="1"><tbody>{body}</tbody></table>'


def field_weights(x: Assignment) -> dict[str, int]:
    """Whole weights of the fields of each step, in the proportion of the points."""
    shares = {step.name: Fraction(str(x.points[step.name])) / len(step.value) for step in x.steps}
    common = math.lcm(*(share.denominator for share in shares.values()))
    return {name: int(share * common) for name, share in shares.items()}


def cloze_field(step: Step, i: int, j: int, weight: int, wrong: list[tuple[str, Matrix]]) -> str:
    """The field of an entry: the right answer, and mistakes that do not collide with it.

    A mistake within the tolerance of the right answer, or of another mistake, is left out.
    """
    right = float(step.value[i, j])
    if math.isinf(right):
        signs = ("-inf", "-∞", "−∞", "-oo") if right < 0 else ("inf", "∞", "+∞", "oo")
        return f"{{{weight}:SHORTANSWER:={'~='.join(signs)}}}"
    values = [(text, float(value[i, j])) for text, value in wrong]
    parts = [f"={right:.8g}:{tolerance(right):.3g}"]
    for n, (text, x) in enumerate(values):
        others = [right, *(y for m, (_, y) in enumerate(values) if m != n)]
        if math.isfinite(x) and not any(_collide(x, y) for y in others):
            feedback = _cloze(f"likely: {text}")
            parts.append(f"%{PARTIAL}%{x:.8g}:{tolerance(x):.3g}#{feedback}")
    return f"{{{weight}:NUMERICAL:{'~'.join(parts)}}}"


def tolerance(x: float) -> float:
    """Largest error of an answer: 1%, and 0.001 of a whole number.

    >>> tolerance(3), tolerance(0.5)
    (0.001, 0.005)
    """
    return EXACT if x == round(x) else max(abs(x) * SHARE, EXACT * SHARE)


def _collide(x: float, y: float) -> bool:
    return math.isfinite(y) and abs(x - y) <= 1.01 * (tolerance(x) + tolerance(y))


def _cloze(text: str) -> str:
    """Feedback inside a Cloze field, which ends at } or ~."""
    return escape(text, quote=False).replace("}", ")").replace("~", "∼")
