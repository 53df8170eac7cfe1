"""Proofs: every line equals the one before, also numerically; a wrong line raises."""

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from regard import work
from regard.errors import WorkError
from regard.work.exact import parse_matrix
from regard.work.families import proofs
from regard.work.families.proofs import solve_proof
from regard.work.marking.findings import first_wrong
from regard.work.rules import get_rule

NAMES = list(proofs.PROOFS)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=3, deadline=None)
@given(st.data())
def test_all_lines_of_a_proof_are_equal_at_random_places(name, data):
    told = proofs.PROOFS[name]
    at = {
        sympy.Symbol(one, real=True): sympy.Rational(data.draw(st.integers(-40, 40)), 16)
        for one in told.symbols
    }
    first = sympy.Matrix(told.lines[0].cells).subs(at).evalf(25)
    for line in told.lines[1:]:
        other = sympy.Matrix(line.cells).subs(at).evalf(25)
        assert max(abs(one) for one in first - other) < 1e-20


@pytest.mark.parametrize(
    ("name", "line", "want"),
    [
        ("sigmoid-negation", 4, [1 / (1 + sympy.exp(proofs._X))]),
        ("tanh", 4, [sympy.tanh(proofs._X)]),
        ("sigmoid-derivative", 3, [sympy.diff(1 / (1 + sympy.exp(-proofs._X)), proofs._X)]),
        ("tanh-derivative", 3, [sympy.diff(sympy.tanh(proofs._X), proofs._X)]),
        ("softmax-derivative", 3, [sympy.diff(sympy.exp(proofs._a) / (sympy.exp(proofs._a)
         + sympy.exp(proofs._b) + sympy.exp(proofs._c)), one)
         for one in (proofs._a, proofs._b)]),
    ],
)  # fmt: skip
def test_the_last_line_is_the_statement(name, line, want):
    found = work.solve(work.read_problem(f"proof-{name}"))[f"L_{line}"]
    assert all(proofs.is_same_formula(one, other) for one, other in zip(found, want, strict=True))


def test_a_line_that_does_not_follow_is_refused():
    run = get_rule("tanh, line 2").run
    with pytest.raises(WorkError, match="line: needs to equal the one before it"):
        run(parse_matrix(1))


def test_a_line_written_another_way_is_right_and_a_known_slip_is_named():
    worked = work.solve(work.read_problem("proof-sigmoid-negation"))
    right = {"L_2": "1 / (1 + exp(x))", "L_4": "exp(-x) / (1 + exp(-x))"}
    assert [one.verdict for one in work.check_answers(worked, right)] == ["right", "right"]
    found = first_wrong(work.check_answers(worked, {"L_4": "-1 / (1 + exp(-x))"}))
    assert found is not None
    assert found.diagnosis == "σ was taken to be odd"


@pytest.mark.parametrize("name", NAMES)
def test_known_slips_are_wrong(name):
    for line in proofs.PROOFS[name].lines:
        for wrong in line.mistakes.values():
            pairs = list(zip(wrong, line.cells, strict=True))
            assert not all(proofs.is_same_formula(one, other) for one, other in pairs)


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize(
    ("values", "of", "message"),
    [
        ({"x": 1}, "sigmoid-negatio", "got 'sigmoid-negatio'; try sigmoid-negation"),
        ({"y": 1}, "tanh", "given: needs a number for each of x, got y"),
    ],
)
def test_what_cannot_be_proved_is_reported(values, of, message):
    with pytest.raises(WorkError, match=message):
        solve_proof(values, identity=of)
