"""Symbols among the numbers: exact, equal to numbers after substitution; a closed parser."""

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from regard import work
from regard.errors import WorkError
from regard.work.exact import parse_number
from regard.work.show.formats import as_latex
from regard.work.show.text import as_text

A, B = (sympy.Symbol(name, real=True) for name in "ab")


def test_attention_in_symbols_by_hand():
    worked = work.solve(work.read_problem("symbols"))
    assert worked["S"] == sympy.Matrix([[A**2, 0], [0, B**2]])
    assert worked["A"][0, 0] == sympy.exp(A**2) / (sympy.exp(A**2) + 1)
    assert worked["H_values"][0, 0] == 2 * sympy.exp(4) / (sympy.exp(4) + 1)
    assert "S₁₁ = a·a + 0·0 = a²" in as_text(worked)
    assert "≈" not in as_text(worked, only=["A"])
    assert "a^{2}" in as_latex(worked)


@settings(max_examples=8, deadline=None)
@given(st.fractions(-2, 2, max_denominator=3), st.fractions(0, 2, max_denominator=3))
def test_values_put_in_at_the_end_are_values_from_the_start(a, b):
    told = {"scale": "b", "given": {"X": [["a", 1], ["1/2", "a*b"]]}}
    later = work.solve(told | {"symbols": ["a", "b"], "values": {"a": str(a), "b": str(b)}})
    sooner = work.solve({"scale": str(b), "given": {"X": [[str(a), 1], ["1/2", str(a * b)]]}})
    for x, y in zip(later["H_values"], sooner["H"], strict=True):
        assert abs(x.evalf(20) - y.evalf(20)) < 1e-15


@pytest.mark.parametrize("family", ["rnn", "gru", "lstm"])
def test_cells_work_in_symbols_and_every_step_follows(family):
    given = dict(work.read_problem("gru")["given"] if family == "gru" else {})
    if family == "rnn":
        given = {"x": [[1, 0]], "W": 1, "U": 1}
    if family == "lstm":
        given = dict(work.read_problem("lstm")["given"])
    name = "W_f" if family == "lstm" else "W"
    worked = work.solve({"family": family, "symbols": ["w"], "given": given | {name: "w"}})
    assert worked.recompute() == worked.values()
    assert worked.to_json()["symbols"] == ["w"]
    values = {"family": family, "given": given}
    put = worked.steps[-1].value.subs(sympy.Symbol("w", real=True), parse_number(given[name]))
    assert abs(put[0].evalf(20) - work.solve(values).steps[-1].value[0].evalf(20)) < 1e-15


def test_an_answer_in_symbols_is_checked_as_a_formula():
    worked = work.solve(work.read_problem("symbols"))

    def verdict(values):
        (found,) = work.check_answers(worked, {"N": values})
        return found.verdict

    assert verdict([["1 + exp(a*a)"], ["exp(b**2) + 1"]]) == "right"
    assert verdict([["1 + exp(a)"], ["?"]]) == "wrong"
    (found,) = work.check_answers(worked, {"S": [["-a**2", 0], [0, "b**2"]]})
    assert found.differences == ("(1,1): -a² should be a²",)
    assert found.diagnosis == "a sign, in (1,1)"


# ---- the parser


def test_numbers_are_read_as_people_write_them():
    half = sympy.Rational(1, 2)
    values = {"-1/2": -half, ".5": half, "2.": 2, "1e-3": half / 500, "-2**2": -4, "2^-1": half}
    values |= {"(1 + 2)*3": 9, "1/sqrt(2)": sympy.sqrt(half), "-inf": -sympy.oo, "3·2": 6, "−1": -1}
    for text, want in values.items():
        assert parse_number(text) == want, text


@settings(max_examples=150, deadline=None)
@given(st.text("0123456789.+-*/()^ eEabinfsqrtxp_'[]{}:=,%", max_size=24))
def test_whatever_is_written_is_a_number_or_refused(text):
    try:
        found = parse_number(text, ["a", "b"])
    except WorkError:
        return
    assert found.free_symbols <= {A, B}
    assert not found.has(sympy.nan, sympy.zoo)


@settings(max_examples=30, deadline=None)
@given(st.recursive(
    st.fractions(-9, 9, max_denominator=9).map(lambda f: sympy.Rational(f.numerator, f.denominator))
    | st.sampled_from([A, B, sympy.E, sympy.pi]),
    lambda x: st.tuples(x, x).map(sum) | st.tuples(x, x).map(lambda p: p[0] * p[1])
    | x.map(sympy.tanh) | x.map(lambda v: sympy.sqrt(v**2 + 1)),
    max_leaves=5,
))  # fmt: skip
def test_what_is_printed_reads_back(x):
    if len(str(x)) <= 200:
        assert parse_number(str(x), ["a", "b"]) == x


@pytest.mark.parametrize("text", [
    "x", "a.b", "__import__('os')", "lambda: 1", "9**9**9", "((9**9)**9)**9", "2**999999999",
    "1e999999999", "exp(exp(exp(exp(9))))", "1/0", "0**-1", "1 2", "(1", "", "()", "sqrt", "1,2",
    "(" * 100 + "1" + ")" * 100, "-" * 199 + "1e", "9" * 201,
])  # fmt: skip
def test_what_is_no_number_is_refused_at_once(text):
    with pytest.raises(WorkError, match="number: needs"):
        parse_number(text)


# ---- errors


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize(("problem", "message"), [
    ({"given": {"X": [["x"]]}}, r'got \'x\'; try symbols = \["x"\]'),
    ({"given": {"X": [["x"]]}, "symbols": ["sqrt"]}, "symbols: needs names such as a"),
    ({"given": {"X": [["x"]]}, "symbols": ["x y"]}, "symbols: needs names such as a"),
    ({"given": {"X": [[1]]}, "symbols": [f"a_{n}" for n in range(20)]}, "symbols: needs at most"),
    ({"given": {"X": [["X"]]}, "values": {"X": 1}}, "symbols: need names that no step has"),
    ({"given": {"X": [[1]]}, "values": 3}, "values: needs a table"),
])  # fmt: skip
def test_symbols_that_cannot_be_are_reported(problem, message):
    with pytest.raises(WorkError, match=message):
        work.solve(problem)
