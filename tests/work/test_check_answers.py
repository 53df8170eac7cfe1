"""Answers: correct rounding passes, the first wrong step is named, errors are carried forward."""

import pytest
import sympy
from typer.testing import CliRunner

from regard import work
from regard.cli import app
from regard.errors import WorkError
from regard.work.exact import parse_matrix
from regard.work.families.attention import solve_attention
from regard.work.marking.findings import first_wrong
from regard.work.rules import get_rule
from regard.work.solution import SolutionBuilder

FX1 = work.solve(work.read_problem("three-tokens"))


def verdicts(answers, solution=FX1):
    return {found.name: found.verdict for found in work.check_answers(solution, answers)}


def cause(answers, solution=FX1):
    found = first_wrong(work.check_answers(solution, answers))
    assert found is not None
    return found.diagnosis


def test_a_hand_worked_answer_with_its_known_slips():
    answers = {
        "Q": [[1, 3], [-1, 1], ["5/2", -2]],
        "K": [[3, -1], [-1, "-3/2"], ["-5/2", "3/2"]],
        "V": [["5/2", "-3/2"], [-1, 3], [-2, -3]],
        "S": [["3/2", 2.5, 8], ["-7/2", "-7/2", 6], ["17/2", 8, "-53/4"]],
        "A": [[0, 0, 1], [0, 0, 1], [0.62, 0.38, 0]],
        "H": [[-2, -3], [-2, -3], [1.17, 0.21]],
    }
    found = {one.name: one for one in work.check_answers(FX1, answers)}
    assert [found[name].verdict for name in "QV"] == ["right", "right"]
    assert found["K"].verdict == "wrong"
    assert len(found["K"].differences) == 3
    assert found["K"].differences[0] == "(1,2): -1 should be -0.5"
    assert found["S"].verdict == "wrong"  # right but for a sign, whatever the keys were
    assert found["S"].diagnosis == "a sign, in (1,2)"
    assert found["A"].verdict == "right"  # to the two places that were written
    assert found["H"].verdict == "right, but rounded early"
    assert first_wrong(list(found.values())) == found["K"]


def test_what_follows_from_a_wrong_step_is_carried_forward():
    wrong = SolutionBuilder(
        "attention", {"Q": [[1, 0], [0, 2]], "K": [[1, 1], [0, 1]], "V": [[1], [2]]}
    )
    right = solve_attention(
        {"Q": [[1, 0], [0, 2]], "K": [[1, 1], [0, 1]], "V": [[1], [2]]}, scale=1
    )
    scores = [[1, 0], [2, 1]]  # the last should be 2
    wrong.given["S"] = wrong.values["S"] = parse_matrix(scores)
    for step in right.steps[1:]:
        wrong.add_step(step.name, step.rule, *step.inputs, title=step.title)
    answers = {name: [[f"{float(x):.6f}" for x in row] for row in m.tolist()]
            for name, m in wrong.values.items() if name in ("E", "N", "A", "H")}  # fmt: skip
    found = verdicts({"S": scores} | answers, right)
    assert found == {"S": "wrong"} | dict.fromkeys(answers, "carried forward")


@pytest.mark.parametrize(
    ("name", "slip"),
    [
        ("S", "the result was transposed"),
        ("A", "it was divided by the column sums"),
        ("N", "columns were added up instead of rows"),
    ],
)
def test_known_mistakes_are_recognised(name, slip):
    step = next(one for one in FX1.steps if one.name == name)
    parts = [FX1[one] for one in step.inputs]
    found = get_rule(step.rule).mistakes[slip](*parts)
    answers = [[f"{float(x):.9f}" for x in row] for row in found.evalf(20).tolist()]
    assert cause({name: answers}) == slip


def test_the_missing_scale_and_the_other_triangle_are_recognised():
    given = {"X": [[1, 2], [0, 1]]}
    scaled = solve_attention(given)
    assert cause({"Z": [[5, 2], [2, 1]]}, scaled) == "the scale was left out"
    masked = solve_attention(given, scale=1, mask="causal")
    assert cause({"R": [[5, 2], ["-inf", 1]]}, masked) == "the other triangle was masked"


def test_the_other_convention_of_a_gru_is_recognised():
    gru = work.solve(work.read_problem("gru"))
    z, h, g = (float(gru[name][0]) for name in ("z_1", "h_0", "g_1"))
    other = z * h + (1 - z) * g
    assert "other GRU convention" in cause({"h_1": f"{other:.6f}"}, gru)


def decimals(value, places=6):
    return [[f"{float(x.evalf(20)):.{places}f}" for x in row] for row in value.tolist()]


def changed(solution, name, slip):
    """What a student has at the end who made this slip and all else right."""
    values = dict(solution.values())
    at = [step.name for step in solution.steps].index(name)
    values[name] = slip(*(values[one] for one in solution.steps[at].inputs))
    for step in solution.steps[at + 1 :]:
        values[step.name] = get_rule(step.rule).run(*(values[one] for one in step.inputs))
    return values


@pytest.mark.parametrize(
    ("name", "slip", "only"),
    [
        ("Q", "the second matrix was transposed", "S"),
        ("Z", "the scale was left out", "A"),
        ("Z", "it was divided instead of multiplied", "H"),
        ("R", "the other triangle was masked", "H"),
        ("R", "no mask was used", "A"),
        ("A", "it was divided by the column sums", "H"),
    ],
)
def test_a_mistake_in_an_unanswered_step_is_diagnosed(name, slip, only):
    given = {"X": [[1, 0], [1, 1], [0, 2]], "W_Q": [[1, 2], [0, 1]], "W_K": [[1, 0], [1, 1]]}
    worked = solve_attention(given | {"W_V": [[1, 0], [2, -1]]}, mask="causal")
    step = next(one for one in worked.steps if one.name == name)
    values = changed(worked, name, get_rule(step.rule).mistakes[slip])
    assert cause({only: decimals(values[only])}, worked) == f"{slip}, in {name}"


def test_a_mask_after_the_softmax_is_found_in_the_output():
    given = {"X": [[1, 0], [1, 1], [0, 2]]}
    worked, free = (solve_attention(given, scale=1, mask="causal"), solve_attention(given, scale=1))
    late = free["A"].multiply_elementwise(worked["mask"]) * free["X"]
    assert cause({"H": decimals(late)}, worked) == "the mask was applied after the softmax, in A"


def test_a_softmax_along_the_wrong_axis_is_one_slip_over_two_steps():
    e = FX1["E"]
    sums = [sum(e.col(j)) for j in range(3)]
    n = parse_matrix([[x] for x in sums])
    a = parse_matrix([[e[i, j] / sums[j] for j in range(3)] for i in range(3)])
    answers = {"N": decimals(n), "A": decimals(a), "H": decimals(a * FX1["V"])}
    found = work.check_answers(FX1, answers)
    assert [one.verdict for one in found] == ["wrong", "carried forward", "carried forward"]
    assert found[0].diagnosis == "the softmax was taken over the columns"


def test_a_gru_that_resets_before_the_product_is_the_other_one():
    problem = {"family": "gru", "given": {
        "x": [[1], [0]], "h": [["1/2"], [1]], "W_z": [[1, 0], [0, 1]], "U_z": [[0, 1], [1, 0]],
        "W_r": [[1, 1], [0, 1]], "U_r": [[1, 0], [0, -1]], "W": [[1, 0], [1, 1]],
        "U": [[1, 2], [-1, 1]]}}  # fmt: skip
    gru = work.solve(problem)
    reset = gru["U"] * gru["r_1"].multiply_elementwise(gru["h_0"])
    says = "the state was reset before the product, U (r ∘ h): the other GRU"
    assert cause({"gr_1": decimals(reset)}, gru) == says
    g = (gru["gx_1"] + reset).applyfunc(sympy.tanh)
    assert cause({"g_1": decimals(g)}, gru) == f"{says}, in gr_1"


def test_entries_may_be_left_open():
    assert verdicts({"Q": [[1, "?"], ["", 1], ["5/2", -2]]}) == {"Q": "right"}


@pytest.mark.usefixtures("users_view")
def test_answers_to_nothing_are_refused():
    with pytest.raises(WorkError, match="answers: need names of steps, Q, K"):
        work.check_answers(FX1, {"T": 1})


def test_the_command_works_checks_and_says_what_is_wrong(tmp_path):
    run = CliRunner()
    assert "three-tokens" in run.invoke(app, ["work"]).output
    shown = run.invoke(app, ["work", "three-tokens"])
    assert shown.exit_code == 0
    assert "S₁₁ = 1·3 + 3·(-1/2) = 3/2" in shown.output
    answers = tmp_path / "answers.toml"
    answers.write_text("Q = [[1, 3], [-1, 1], [2.5, -2]]\n")
    good = run.invoke(app, ["work", "three-tokens", "--check", str(answers)])
    assert (good.exit_code, "Every value" in good.output) == (0, True)
    answers.write_text("Q = [[1, 3], [-1, 1], [2.5, 2]]\n")
    bad = run.invoke(app, ["work", "three-tokens", "--check", str(answers)])
    assert bad.exit_code == 3
    assert "likely: a sign, in (3,2)" in bad.output
    assert run.invoke(app, ["work", "three-token"]).exit_code == 2
    assert run.invoke(app, ["work", str(tmp_path / "no.toml")]).exit_code == 2


# ---- what people write, and what they try


SOFTMAX = work.solve({"scale": 1, "given": {"X": [[1, 0], [1, 1], [0, 2]]}})


@pytest.mark.parametrize("written", [
    "6.698*10^-1", "6.7·10⁻¹", "6.7 × 10^-1", "(0.67)", "≈ 0.67", "~.67", "= 0.670", "a = 0,67",
    "67 %", "0.66984", "+0.67", "6.6984e-1", "0.669…",
])  # fmt: skip
def test_a_number_is_read_as_people_write_it(written):
    problem = {"given": {"a": "66984/100000", "b": 1}}
    alone = SolutionBuilder("none", problem["given"])
    alone.add_step("c", "product", "a", "b", title="one number")
    assert verdicts({"c": written}, alone.build()) == {"c": "right"}


@pytest.mark.parametrize(
    ("right", "written"),
    [("5/2", "2½"), ("5/2", "2 1/2"), ("-5/2", "–2 1/2"), ("1234567", "1,234,567"),
     ("1234567", "1 234 567"), ("2469/2", "1'234.5"), ("1234", "1,234"), ("617/500", "1,234"),
     ("sqrt(2)", "√2"), ("exp(1)/(1+exp(1))", "e/(1+e)"), ("300", "3·10²")],
)  # fmt: skip
def test_fractions_groups_and_powers_are_read(right, written):
    alone = SolutionBuilder("none", {"a": right, "b": 1})
    alone.add_step("c", "product", "a", "b", title="one number")
    assert verdicts({"c": written}, alone.build()) == {"c": "right"}


@pytest.mark.parametrize("written", [
    "0e9", "1e9±", "0.0e0", "[0,1]", "nan", "0.5±0.5", "3*4", "1*0+0*1+1", "?", "", "1e9", "0.",
    "0.4..0.6", "tanh(0.3*1+0.5*2)", "tanh(0.4525)", "exp(-0.858)", "log(1.528)", "e^-0.858",
    "4e-1",
])  # fmt: skip
def test_an_entry_without_information_is_not_right(written):
    alone = SolutionBuilder("none", {"a": "0.424", "b": 1})
    alone.add_step("c", "product", "a", "b", title="one number")
    (found,) = work.check_answers(alone.build(), {"c": written})
    assert found.verdict in ("wrong", "open")
    assert found.points == 0


def test_one_unreadable_cell_costs_that_cell():
    (found,) = work.check_answers(SOFTMAX, {"S": [["?!", 1, 0], [1, 2, 2], [0, 2, 4]]})
    assert (found.verdict, found.points, found.unread[0][:6]) == ("right", 8 / 9, "(1,1):")


def test_a_rounded_chain_is_right_but_rounded_early():
    weights = decimals(SOFTMAX["A"], 1)
    rounded = parse_matrix(weights) * SOFTMAX["X"]
    found = work.check_answers(SOFTMAX, {"A": weights, "H": decimals(rounded, 3)})
    assert [one.verdict for one in found] == ["right", "right, but rounded early"]
    assert [one.points for one in found] == [1, 1]


def test_numbers_that_were_rounded_on_the_way_move_what_follows_within_their_rounding():
    """Computed with two decimals of the weights, of which one is written."""
    used = parse_matrix(decimals(SOFTMAX["A"], 2)) * SOFTMAX["X"]
    answers = {"A": decimals(SOFTMAX["A"], 1), "H": decimals(used, 4)}
    (_, found) = work.check_answers(SOFTMAX, answers)
    assert (found.verdict, found.points) == ("right, but rounded early", 1)
    moved = parse_matrix(decimals(used, 4)) + used.applyfunc(lambda x: 0.2)
    (_, found) = work.check_answers(SOFTMAX, answers | {"H": decimals(moved, 4)})
    assert found.verdict == "wrong"


def test_the_other_convention_is_marked_and_named():
    given = {"X": [[1, 0], [1, 1], [0, 2]], "W_Q": [[1, 2], [0, 1]], "W_K": [[1, 0], [1, 1]]}
    worked = solve_attention(given | {"W_V": [[1, 0], [2, -1]]})
    turned = {name: decimals(worked[name].T, 4) for name in ("Q", "K", "V", "S", "A", "H")}
    found = work.check_answers(worked, turned)
    assert {one.verdict for one in found} == {"right"}
    assert {one.note for one in found} == {"written with rows and columns in the other convention"}


def test_scores_that_are_already_scaled_are_right_and_said():
    worked = solve_attention({"X": [[1, 2], [0, 1]]})
    scaled = decimals(worked["Z"], 4)
    found = work.check_answers(worked, {"S": scaled, "Z": scaled, "A": decimals(worked["A"], 4)})
    assert {one.verdict for one in found} == {"right"}
    assert found[0].note == "written already scaled, as Z"


def test_a_column_may_stand_as_a_row():
    assert verdicts({"N": [decimals(SOFTMAX["N"], 2)[n][0] for n in range(3)]}, SOFTMAX) == {
        "N": "right"
    }
    assert verdicts({"N": [[row[0] for row in decimals(SOFTMAX["N"], 2)]]}, SOFTMAX) == {
        "N": "right"
    }


def test_a_tolerance_stands_in_place_of_the_written_digits():
    near = [["6.45"], ["17.2"], ["62.9"]]
    assert verdicts({"N": near}, SOFTMAX) == {"N": "wrong"}
    (found,) = work.check_answers(SOFTMAX, {"N": near}, tolerance=1)
    assert found.verdict == "right"


@pytest.mark.parametrize(
    ("right", "written"),
    [("sin(1)", "sin(1)"), ("log(2)", "ln(2)"), ("exp(2)", "exp(2)"), ("exp(2)", "e^2"),
     ("1/(1+exp(-2))", "1/(1+e^-2)"), ("pi/2", "π/2"), ("tanh(a)", "tanh(a)"),
     ("exp(1/2)", "exp(1/2)"), ("tanh(1)/2", "tanh(1)/2")],
)  # fmt: skip
def test_exact_constants_and_formulas_of_symbols_are_right(right, written):
    alone = SolutionBuilder("none", {"a": parse_matrix([[right]], symbols=["a"]), "b": 1})
    alone.add_step("c", "product", "a", "b", title="one number")
    assert verdicts({"c": written}, alone.build()) == {"c": "right"}


@pytest.mark.parametrize(
    ("right", "written"),
    [("tanh(1/2)", "tanh(0.5)"), ("exp(1/2)", "e^0.5"),
     ("1/(1+exp(-1/2))", "1/(1+exp(-0.5))"), ("0", "tanh(0)"), ("1", "exp(0)"),
     ("exp(1/2)*sin(1)", "1.648721*sin(1)")],
)  # fmt: skip
def test_a_function_left_to_work_out_is_not_right(right, written):
    alone = SolutionBuilder("none", {"a": right, "b": 1})
    alone.add_step("c", "product", "a", "b", title="one number")
    (found,) = work.check_answers(alone.build(), {"c": written})
    assert (found.verdict, found.points) == ("open", 0)
    assert "needs the value, worked out" in found.unread[0]


def test_places_compare_every_number_at_so_many_decimals(tmp_path):
    run, answers = CliRunner(), tmp_path / "a.toml"
    check = ["work", "three-tokens", "--check", str(answers)]
    right = decimals(FX1["H"], 6)
    near = [[f"{float(x) + 0.004:.3f}" for x in row] for row in right]
    for values, exit_codes in ((right, (0, 0, 0)), (near, (3, 0, 3))):
        answers.write_text(f"H = {values}")
        done = [
            run.invoke(app, check + more) for more in ([], ["--places", "2"], ["--places", "3"])
        ]
        assert tuple(x.exit_code for x in done) == exit_codes, values
    both = run.invoke(app, [*check, "--places", "2", "--tolerance", "0.01"])
    assert (both.exit_code, both.output.count("\n")) == (2, 1)
    assert run.invoke(app, ["work", "three-tokens", "--places", "2"]).exit_code == 2


def test_a_forgotten_exponential_is_named():
    shares = [row / sum(row) for row in (SOFTMAX["S"].row(i) for i in range(3))]
    answers = {"A": [decimals(row, 4)[0] for row in shares]}
    assert cause(answers, SOFTMAX) == "the exponential was left out, in E"


def test_equal_causes_are_all_named():
    worked = solve_attention({"Q": [[1, 2], [0, 1]], "K": [[2, 1], [1, 3]], "V": [[1], [2]]})
    said = cause({"Z": decimals(worked["S"] / 2)}, worked)
    assert said == "the scale was applied twice or it was divided by 2, without the root"
