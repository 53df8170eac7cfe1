"""Marking: blank sheets, each entry's own precision, own values carried forward, every format."""

import contextlib
import json
import random
from decimal import ROUND_DOWN, ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal

import pytest
import sympy
from typer.testing import CliRunner

from regard import work
from regard.cli import app
from regard.errors import RegardError, WorkError
from regard.work.exact import evaluate_digits, parse_number
from regard.work.families.cost import solve_cost
from regard.work.problem import read_toml
from regard.work.show.marks import findings_as_text
from regard.work.show.text import as_text, entry_text
from regard.work.solution import apply_rule

run = CliRunner()
PROBLEMS = {name: work.read_problem(name) for name in work.problem_names()}
THREE = work.solve(work.read_problem("three-tokens"))


def marked(tmp_path, text, *more, problem="three-tokens", name="answers.toml"):
    file = tmp_path / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return run.invoke(app, ["work", problem, "--check", str(file), *more])


def one(want, written):
    """The finding for one number that should be `want`."""
    alone = work.SolutionBuilder("none", {"a": want, "b": 1})
    alone.add_step("c", "product", "a", "b", title="one number")
    return work.check_answers(alone.build(), {"c": written})[0]


# ---- 13: what was not answered


@pytest.mark.parametrize("text", ["", " \n\t\n", "# Ada, 14 May\n", "\ufeff# a\r\n\r\n"])
def test_a_blank_sheet_is_not_all_right(text, tmp_path):
    found = marked(tmp_path, text)
    assert found.exit_code == 1
    assert found.output == (
        "Nothing was answered: needs a value for any of Q, K, V, S, E, N, A, H.\n"
    )


def test_a_sheet_left_open_names_what_it_asks_for(tmp_path):
    files = work.write_sheet(work.make_sheet("rnn", seed=1, count=1), "toml", tmp_path)
    found = run.invoke(app, ["work", str(files[0]), "--check", str(files[1])])
    assert found.exit_code == 1
    assert found.output.endswith("Nothing was answered: needs a value for any of h_1.\n")


def test_a_half_filled_sheet_is_marked_and_its_gaps_are_listed(tmp_path):
    some = "Q = [[1, 3], [-1, 1], [2.5, '?']]\nK = [['?', ''], ['?', '?'], ['?', '?']]\n"
    found = marked(tmp_path, some)
    assert found.exit_code == 1  # nothing is wrong, but the sheet is not finished
    assert "Q: right; (3,2) left open\nK: not answered\n" in found.output
    assert "Still open: Q, K.\nNot on the sheet: V, S, E, N, A, H.\n" in found.output
    wrong = marked(tmp_path, some.replace("3]", "4]"))
    assert (wrong.exit_code, "Still open: Q, K." in wrong.output) == (3, True)
    assert marked(tmp_path, "Q = [[1, 3], [-1, 1], [2.5, -2]]").exit_code == 0  # any of the steps


def test_a_class_counts_blank_and_unfinished_papers_apart(tmp_path):
    right = "Q = [[1, 3], [-1, 1], [2.5, -2]]\n"
    papers = {"ada": right, "bob": "", "eve": right + "K = [[3, '?'], ['?', '?'], ['?', '?']]\n"}
    for name, text in papers.items():
        (tmp_path / f"{name}.toml").write_text(text)
    found = run.invoke(app, ["work", "three-tokens", "--check", str(tmp_path)])
    assert found.exit_code == 1
    assert "ada  1 of 1  all right\nbob  0 of 0  nothing was answered\n" in found.output
    assert "eve  2 of 2  what was given is right; still open: K\n" in found.output
    assert "1 of 3 all right\nnot finished: bob, eve\n" in found.output


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[answers]\nQ = 1", "got 'answers'; leave out the heading [answers]"),
        ("X = 1", "got 'X'; it is given, leave it out"),
        ("q = 1", "got 'q'"),
        ("AA = 1", "got 'AA'; try A"),
        ("Q = 1/2", "try a point in decimals, 0.5, and quotes around formulas"),
        (b"# L\xf6sung\nQ = 1", "needs UTF-8, got byte 0xf6 in line 1"),
    ],
)
def test_a_sheet_that_cannot_be_read_says_where_and_what_to_do(text, message, tmp_path):
    found = marked(tmp_path, text)
    assert found.exit_code == 2
    assert message in found.output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("N = [[0,5], [1,5], [2,5]]", "got 3 of 2; try a point, 0.5: a comma separates entries"),
        ("Q = [1, 2]", "Q: cannot be read"),
        ('N = ["nonsense", 403.49, 7895.73]', "(1,1): needs one such as 3, 0.25"),
        ('N = ["nan", 403.49, 7895.73]', "(1,1): needs one value, got 'nan'"),
        ('N = ["2985.5±0.1", 403.49, 7895.73]', "(1,1): needs one value"),
        ('N = ["0.0e5", 403.49, 7895.73]', "(1,1): 0.0e5 should be 2985.52"),
        ('N = ["3e3", 403.49, 7895.73]', ""),
    ],
)
def test_an_entry_that_cannot_be_read_costs_that_entry_alone(text, message, tmp_path):
    found = marked(tmp_path, text + "\nV = [[2.5, -1.5], [-1, 3], [-2, -3]]\n")
    assert message in found.output
    assert "V: right" in found.output
    assert found.exit_code == (3 if "should be" in message else 1 if message else 0)


def test_a_class_folder_without_papers_is_refused(tmp_path):
    found = run.invoke(app, ["work", "three-tokens", "--check", str(tmp_path)])
    assert (found.exit_code, "needs to hold TOML files, got none" in found.output) == (2, True)


@pytest.mark.parametrize("data", [
    b"N = ['2985,52', '403,49', '7895,73']\r\n",
    "N = ['2985,5', 403.49, '7,89573e3']".replace("7,89573e3", "7895.7").encode("utf-16"),
    b"\xef\xbb\xbfN = [2985.52, 403.49, 7_895.73]\r\n",
])  # fmt: skip
def test_files_as_editors_save_them_are_read(data, tmp_path):
    assert marked(tmp_path, data).exit_code == 0


# ---- 14: each entry to its own precision


@pytest.mark.parametrize(
    "name", ["three-tokens", "gru", pytest.param("move-token", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("style", [".2f", ".7f", ".3g", ".9g", ".1e", ".5e"])
def test_a_right_answer_is_right_in_any_rounding(name, style):
    worked = work.solve(work.read_problem(name))
    answers = {}
    for step in worked.steps:
        digits = [
            [Decimal(str(evaluate_digits(x, 40))) for x in row] for row in step.value.tolist()
        ]
        answers[step.name] = [[format(x, style) for x in row] for row in digits]
        if style in (".3g", ".9g"):  # 3 alone is exact, and 3.0 is not
            answers[step.name] = [
                [f"{x}." if x.isdigit() else x for x in row] for row in answers[step.name]
            ]
    small = {x.name for x in worked.steps if all(abs(float(y)) < 0.02 for y in x.value)}
    for found in work.check_answers(worked, answers):
        says_nothing = style == ".2f" and found.name in small  # 0.00 of small numbers
        assert found.verdict in ("right", "open" if says_nothing else "right"), found.name


@pytest.mark.parametrize("written", [
    "0.998", "9.98471e-1", "1.0e0", "0.99847", ".998", "+0.9985", "99.8%", "100%", "0.9984…",
    "0.99847 …", 0.998471, 1.0, "0,998", "998471e-6", "1.", " 0.9985 ",
    "0.99847100000000000000", "998471/1000000",
])  # fmt: skip
def test_what_is_right_to_its_own_digits_is_right(written):
    assert one("998471/1000000", written).verdict == "right"


@pytest.mark.parametrize("written", [
    "0.997", "9.98472e-1", "0.9984", "0.9990", "1", "99%", "0.99848", "1e-3", "0.998471001",
    "-0.998471", "998472/1000000", "0.9983…",
])  # fmt: skip
def test_what_is_wrong_in_its_last_digit_is_wrong(written):
    assert one("998471/1000000", written).verdict == "wrong"


def test_a_half_may_be_rounded_up_or_to_even_and_other_halves_not():
    for want in ("0.125", "0.135", "-2.5"):
        for way in (ROUND_HALF_UP, ROUND_HALF_EVEN):
            place = Decimal("0.01") if "." in want[2:] else Decimal("1.")
            near = Decimal(want).quantize(Decimal("1e-2") if want != "-2.5" else place, way)
            assert one(want, f"{near}").verdict == "right"
    assert one("0.125", "0.14").verdict == "wrong"


def test_trailing_zeros_claim_their_places(tmp_path):
    assert one("0.46", "0.5").verdict == "right"
    assert one("0.46", "0.50").verdict == "wrong"
    file = tmp_path / "a.toml"
    file.write_text("a = 0.50\nb = 1.0e-3\nc = 12345678901234567890.125\n")
    answers = read_toml(file)
    assert list(answers.values()) == ["0.50", "1.0e-3", "12345678901234567890.125"]


def test_truncated_digits_are_diagnosed():
    found = work.check_answers(THREE, {"A": [
        [
            str(Decimal(str(evaluate_digits(x, 30))).quantize(Decimal("1e-4"), ROUND_DOWN))
            for x in row
        ]
        for row in THREE["A"].tolist()]})[0]  # fmt: skip
    assert (found.verdict, found.diagnosis) == ("wrong", "the decimals were cut off, not rounded")


def test_an_ellipsis_allows_digits_to_be_cut_off_and_nothing_else():
    assert one("2/3", "0.66…").verdict == one("2/3", "0.67…").verdict == "right"
    assert one("2/3", "0.65…").verdict == one("0.6725", "0.68…").verdict == "wrong"


@pytest.mark.parametrize(
    ("want", "written"),
    [("998471/1000000", "0.998471001"), ("1/3", "0.33333334"), ("1/3", "333333/1000000"),
     ("123456789", "123456788"), ("sqrt(2)", "1.4142135625"), ("1e-9", "2e-9"), ("0", "1e-9")],
)  # fmt: skip
def test_a_wrong_number_is_never_shown_beside_an_equal_one(want, written):
    said = one(want, written).differences[0]
    left, right = said.removeprefix("(1,1): ").split(" should be ")
    assert left == written
    assert abs(sympy.Rational(right) - sympy.Rational(left)) > 0


def test_a_count_that_is_off_by_one_is_wrong_however_large():
    sizes = solve_cost({"n": 512, "d": 512})
    assert work.check_answers(sizes, {"att": 805306368})[0].verdict == "right"
    assert work.check_answers(sizes, {"att": 805306369})[0].verdict == "wrong"


def test_whole_numbers_among_rounded_ones_are_rounded_too():
    n = [[str(round(float(evaluate_digits(x, 20))))] for x in THREE["N"]]  # 2986, 403, 7896
    assert work.check_answers(THREE, {"N": n})[0].verdict == "right"
    assert work.check_answers(THREE, {"A": [[0, 0, 1], [0, 0, 1], [1, 0, 0]]})[0].verdict == "wrong"


# ---- 17: what follows from the student's own values


def with_slips(solution, *slips):
    """A paper that is worked on from each slip: (step, row, column, how much is added)."""
    values, wrong = dict(solution.given), {}
    for name, i, j, by in slips:
        wrong.setdefault(name, []).append((i, j, sympy.sympify(by)))
    for step in solution.steps:
        value = apply_rule(step.rule, *(values[one] for one in step.inputs)).as_mutable()
        for i, j, by in wrong.get(step.name, ()):
            value[i, j] += by
        values[step.name] = value.as_immutable()
    return {
        step.name: [[str(x) if x.is_infinite or x.free_symbols else f"{evaluate_digits(x, 9)}"
                     for x in row] for row in values[step.name].tolist()]
        for step in solution.steps
    }  # fmt: skip


SLIPS = {
    "three-tokens": [("K", 0, 1, 1), ("A", 2, 0, "1/4")],
    "gru": [("rs_1", 0, 0, "1/2"), ("g_1", 0, 0, "-1/5")],
    "encoder": [("Q_1", 0, 0, 2), ("P_1", 1, 1, "1/3")],
    "bptt-lstm": [("f_1", 0, 0, "1/5"), ("dh_1", 0, 0, 1)],
    "parameter-counts": [("d_k", 0, 0, 1), ("w_QKV", 0, 0, 7)],
    "layer-norm": [("m", 0, 0, 1), ("LN", 1, 0, "1/2")],
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in ("encoder", "bptt-lstm") else ())
        for name in SLIPS
    ],
)
@pytest.mark.parametrize("count", [1, 2])
def test_later_steps_are_held_to_what_follows_from_the_slips(name, count):
    worked = work.solve(work.read_problem(name))
    slips = SLIPS[name][:count]
    found = work.check_answers(worked, with_slips(worked, *slips))
    assert [one.name for one in found if one.verdict == "wrong"] == [slip[0] for slip in slips]
    assert any(one.verdict == "carried forward" for one in found)
    assert not any(one.inconsistent_with for one in found)


def test_a_second_slip_is_shown_beside_what_follows_from_the_first():
    answers = {"Q": [[1, 3], [-1, 1], ["5/2", -2]], "K": [[3, 0], [2, "-3/2"], ["-5/2", "7/2"]],
            "S": [[3, "-5/2", 8], [-3, "-7/2", 6], ["15/2", 8, "-53/4"]]}  # fmt: skip
    first, second = work.check_answers(THREE, answers)[1:]
    assert first.differences == ("(1,2): 0 should be -0.5",)
    assert (
        second._replace(diagnosis="")
        == work.Finding("S", "wrong", ("(1,1): 4 should be 3",), "", (), ("K",))
        or second.verdict == "carried forward"
    )
    answers["S"][0][0] = 4
    second = work.check_answers(THREE, answers)[2]
    assert (second.differences, second.wrong_inputs) == (("(1,1): 4 should be 3",), ("K",))
    said = findings_as_text(work.check_answers(THREE, answers))
    assert "S: wrong even given K as written\n   (1,1): 4 should be 3" in said


def test_a_right_value_that_does_not_follow_is_right_and_reported():
    answers = {"K": [[3, 0], [2, "-3/2"], ["-5/2", "7/2"]],
            "S": [["3/2", "-5/2", 8], ["-7/2", "-7/2", 6], ["17/2", 8, "-53/4"]]}  # fmt: skip
    found = work.check_answers(THREE, answers | {"A": THREE["A"].tolist()})
    assert [(one.verdict, one.inconsistent_with) for one in found] == [
        ("wrong", ()), ("right", ("K",)), ("right", ())]  # fmt: skip
    assert "S: right, but it does not follow from K as written" in findings_as_text(found)


def test_values_that_no_rule_takes_do_not_stop_the_marking():
    norm = work.solve(work.read_problem("layer-norm"))
    found = work.check_answers(
        norm, {"v": [[-4], [-9]], "LN": norm["LN"].tolist()}
    )  # no root of these
    assert [one.verdict for one in found] == ["wrong", "right"]


# ---- 15: names that nothing takes


@pytest.mark.parametrize("name", sorted({p["family"]: n for n, p in PROBLEMS.items()}.values()))
def test_a_name_that_no_family_takes_is_refused(name):
    problem = work.read_problem(name)
    for strange in ("WQ_", "b_h_", "Gamma_", "zz"):
        with pytest.raises(WorkError, match=r"^(given: needs|P: needs)"):
            work.solve({**problem, "given": {**problem["given"], strange: 1}})


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize(
    ("problem", "message"),
    [
        ({"given": {"X": 1, "WQ": 1}}, "got 'WQ'; try W_Q"),
        ({"family": "rnn", "given": {"x": 1, "W": 1, "U": 1, "b_h": 1}}, "got 'b_h'; try b$"),
        ({"family": "layer-norm", "given": {"X": 1, "Gamma": 1}}, "got 'Gamma'; try gamma"),
        ({"family": "bptt", "given": {"x": 1, "W": 1, "U": 1, "Target": 1}}, "try target"),
        ({"family": "encoder", "given": {"X": 1, "W_1": 1, "W_2": 1, "gamma": 1}}, "try gamma_1"),
        ({"family": "multi-head", "given": {"X": 1, "W_Q_1": 1, "W_Q_3": 1}}, "needs W_Q_2 before"),
        ({"Given": {"X": 1}}, "^Given: .*; try given"),
        ({"given": {"X": 1}, "values": {"a": 1}}, "values: needs .*, none, got 'a'"),
        ({"given": {"X": 1}, "scal": 1}, "^scal: .*; try scale"),
        ({"family": [[[1]]], "given": {"X": 1}}, r"^family: .*got \[\[\[1\]\]\]"),
    ],
)  # fmt: skip
def test_the_nearest_name_is_reported(problem, message):
    with pytest.raises(WorkError, match=message):
        work.solve(problem)


# ---- 18: formats


STARTS = {
    ".txt": "Q: right", ".md": "# Marks: ", ".tex": "\\documentclass", ".html": "<!doctype html>",
    ".json": "{", "": "Q: right",
}  # fmt: skip
RIGHT = "Q = [[1, 3], [-1, 1], [2.5, -2]]\n"


@pytest.mark.parametrize("ending", STARTS)
def test_marks_are_written_as_the_file_ends(ending, tmp_path):
    out = tmp_path / f"marks{ending}"
    found = marked(tmp_path, RIGHT, "-o", str(out))
    assert found.exit_code == 0
    assert found.output == f"{out}: Every value that was given is right.\n"
    assert out.read_text().lower().startswith(STARTS[ending].lower())
    many = run.invoke(app, ["work", "three-tokens", "--check", str(tmp_path / "answers.toml"),
                            "--check", str(tmp_path / "answers.toml"), "-o", str(out)])  # fmt: skip
    assert many.exit_code == 0
    assert "2 of 2 all right" in out.read_text()


def test_marks_in_json_are_data(tmp_path):
    found = marked(tmp_path, RIGHT.replace("-2", "2"), "--format", "json")
    answers = json.loads(found.output)
    assert (found.exit_code, answers["steps"][0]["diagnosis"]) == (3, "a sign, in (3,2)")


@pytest.mark.parametrize("more", [
    ["self-attention"], ["self-attention", "column-convention"],
    ["self-attention", "--each", "scale=0,1"], ["--make", "rnn"],
])  # fmt: skip
def test_every_output_follows_the_ending_and_a_format_that_is_named_wins(more, tmp_path):
    for ending, start in {".html": "<!doctype html>", ".tex": "\\documentclass"}.items():
        out = tmp_path / f"a{ending}"
        assert run.invoke(app, ["work", *more, "-o", str(out)]).exit_code == 0
        assert out.read_text().lower().startswith(start)
        assert run.invoke(app, ["work", *more, "-o", str(out), "--format", "text"]).exit_code == 0
        assert not out.read_text().lower().startswith(start)
    strange = run.invoke(app, ["work", *more, "-o", str(tmp_path / "a.pdf")])
    assert (strange.exit_code, "needs a name that ends in" in strange.output) == (2, True)
    assert not (tmp_path / "a.pdf").exists()


def test_one_exercise_may_go_to_a_toml_file(tmp_path):
    out = tmp_path / "mine.toml"
    assert run.invoke(app, ["work", "--make", "rnn", "-o", str(out)]).exit_code == 0
    answers = tmp_path / "mine-answers.toml"
    assert run.invoke(app, ["work", str(out), "--check", str(answers)]).exit_code == 1


@pytest.mark.parametrize("options", [
    ["--check", "a.toml"], ["self-attention", "--shapes", "--format", "html"],
    ["--make", "rnn", "self-attention"], ["self-attention", "--check", "a.toml", "--only", "A"],
    ["bptt-rnn", "--autograd", "-o", "a.html"],
])  # fmt: skip
def test_an_option_that_would_be_dropped_is_refused(options):
    assert run.invoke(app, ["work", *options]).exit_code == 2


# ---- 19: numbers and files that are none


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("log(-1)", "the log of more than 0"),
        ("sqrt(-1)", "the sqrt of 0 or more"),
        ("log(0)", "the log of more than 0"),
        ("(-8)**(1/3)", "no root of a number below 0"),
        ("0**-1", "no division by 0"),
        ("1e400**64", "at most a thousand digits"),
        ("1e400*1e400*1e400", "at most a thousand digits"),
        ("((2**8)**8)**8", "powers up to 64"),
        ("(" * 5000, "at most 30 brackets"),
        ("sin(inf)", "one such as 3"),
        ("inf - inf", "one such as 3"),
    ],
)
def test_a_formula_without_a_real_value_is_refused(text, message):
    with pytest.raises(WorkError, match=message):
        parse_number(text)


def test_powers_beside_each_other_are_not_powers_of_powers():
    text = "*".join(["(1 + sqrt(2))**9"] * 8)
    assert parse_number(text) == (1 + sympy.sqrt(2)) ** 72


@pytest.mark.parametrize(
    "text",
    ["X = " + "[" * 20_000, "X = " + "[" * 3_000 + "]" * 3_000, "X = " + "9" * 5_000,
     "X = [" + "1e5, " * 50_000 + "]", "a." * 200_000 + "a = 1",
     "'a' . " * 99 + "a = 1", "X = '" + "(" * 100_000 + "'"],
)  # fmt: skip
def test_files_without_end_are_refused_at_once(text, tmp_path):
    file = tmp_path / "p.toml"
    file.write_text(f"family = 'attention'\n[given]\n{text}\n")
    found = run.invoke(app, ["work", str(file)])
    assert found.exit_code == 2
    assert len(found.output) < 600
    with pytest.raises(RegardError):
        work.solve(read_toml(file))


def test_an_exact_number_has_no_digits_left_off():
    fifty = work.SolutionBuilder("none", {"a": sympy.Float("1.5", 50), "b": 2})
    fifty.add_step("c", "product", "a", "b", title="carried to 50 digits, and whole")
    fifty.add_step("d", "tanh", "b", title="not whole")
    worked = fifty.build()
    assert entry_text(worked, worked.steps[0]) == "c = 1.5·2 = 3"
    assert entry_text(worked, worked.steps[1]) == "d = tanh(2) = 0.964028 …"
    near = work.SolutionBuilder("none", {"a": 20})
    near.add_step("b", "tanh", "a", title="nearly 1")
    assert entry_text(near.build(), near.steps[0]) == "b = tanh(20) = 1.00000 …"


# ---- whatever is written, a WorkError with its place or an answer

ODD = [
    0, -1, 10**30, "1e300", "1e400", "inf", "-inf", "0/0", "exp(9000)", "", "?", "x", "(" * 50,
    "9" * 199, True, None, [], [[]], [[[1]]], [1], [[1, 2], [3]], {}, {"a": 1}, "nan", "1,5", "²",
    2**64, [["1/3"] * 6] * 6, [["a", "b"], ["a*b", "a**2"]], 1.5, float("nan"), "\0", "local:9",
]  # fmt: skip


def mangled(value, rng):
    """One place of a problem or a sheet changed to something else."""
    if isinstance(value, dict) and value:
        key = rng.choice(list(value))
        rest = {k: v for k, v in value.items() if k != key}
        change = rng.random()
        if change < 0.1:
            return rest
        if change < 0.2:
            return {**rest, rng.choice([key.upper(), f"{key}_", "X", "symbols"]): value[key]}
        return {**rest, key: mangled(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        new = [] if rng.random() < 0.1 else [mangled(value[at], rng)]
        return [*value[:at], *new, *value[at + 1 :]]
    return rng.choice(ODD)


@pytest.mark.usefixtures("users_view")  # as a student sees it
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_no_mangled_problem_or_sheet_ends_in_a_traceback(seed):
    rng = random.Random(seed)
    quick = (
        "rnn",
        "gru",
        "self-attention",
        "hard-attention",
        "layer-norm",
        "parameter-counts",
        "cross-attention",
        "feed-forward",
        "symbols",
    )
    for name in quick if seed == 0 else PROBLEMS:
        worked = work.solve(PROBLEMS[name])
        sheet = {step.name: step.value.tolist() for step in worked.steps}
        for _ in range(4):
            with contextlib.suppress(RegardError):
                as_text(work.solve(mangled(PROBLEMS[name], rng)))
            with contextlib.suppress(RegardError):
                findings_as_text(work.check_answers(worked, mangled(sheet, rng)))


# ---- what does not count


THIRDS = {"X": [["0.3", "-1.2"], ["1", "-0.8"], ["1.4", "0.8"]]}


@pytest.mark.parametrize("written", [
    "0.", "1.", "0.…", "0e9", "1e9", "0.3-0.4", "0.3 ... 0.5", "0.5±0.5", "nan", "<1", "exp(S)",
    "1*0.3", "100%", "0", "½±½",
])  # fmt: skip
def test_a_cell_without_information_is_not_right(written):
    worked = work.solve({"scale": 1, "given": THIRDS})
    (found,) = work.check_answers(worked, {"A": [[written] * 3] * 3})
    assert (found.verdict in ("wrong", "open"), found.points) == (True, 0)


def test_numbers_that_are_exact_leave_no_room_for_rounding():
    worked = work.solve({"scale": 1, "given": THIRDS | {"W_Q": [[1, 0], [0, 1]]}})
    answers = {"Q": THIRDS["X"], "S": worked["S"].applyfunc(lambda x: x.evalf(5)).tolist()}
    answers["S"] = [[str(x) for x in row] for row in answers["S"]]
    assert {found.verdict for found in work.check_answers(worked, answers)} == {"right"}
    answers["S"][0][0] = "1.61"  # 1.53: within half a unit of each number of Q
    assert work.check_answers(worked, answers)[1].verdict == "wrong"


def test_a_slip_that_leaves_nothing_to_work_out_is_not_carried():
    worked = work.solve({"scale": 1, "given": THIRDS})
    answers = {"S": [[0] * 3] * 3, "E": [[1] * 3] * 3, "A": [["1/3"] * 3] * 3}
    found = work.check_answers(worked, answers)
    assert [one.points for one in found] == [0, 0, 0]
    assert "nothing to work out" in found[1].note


@pytest.mark.parametrize(("slip", "points"), [(0, 0), (2, 1)])
def test_what_zeros_give_is_not_carried_in_a_short_vector(slip, points):
    worked = work.solve({"scale": 1, "given": {"Q": [[1]], "K": [[1], [3]], "V": [[2], [5]]}})
    weight = "1/2"  # of two scores that are equal, by zeros or by accident
    answers = {"S": [[slip, slip]], "A": [[weight, weight]], "E": [[f"e^{slip}"] * 2]}
    found = {one.name: one for one in work.check_answers(worked, answers)}
    assert (found["S"].verdict, found["E"].verdict) == ("wrong", "carried forward")
    assert found["E"].points == points


@pytest.mark.parametrize("written", ["10^-3", "10⁻³", "1⁄1000", "$0.001$", "1/1000", "0,001"])
def test_a_thousandth_is_read_as_people_write_it(written):
    assert one("1/1000", written).verdict == "right"


@pytest.mark.parametrize(("want", "written"), [
    ("1234.5", "1.234,5"), ("1234567", "1.234.567"), ("log(2)", "ln(2)"), ("pi", "π"),
])  # fmt: skip
def test_signs_of_other_countries_are_read(want, written):
    assert one(want, written).verdict == "right"


@pytest.mark.parametrize(("first", "shift"), [(0, 1), (1, -1)])
def test_positions_counted_from_the_other_end_are_a_cause(first, shift):
    worked = work.solve({"family": "positions", "given": {"p": [first, first + 1], "d": 4}})
    rows = [[p + shift, f"{(p + shift) / 100:.4f}"] for p in (first, first + 1)]
    (found,) = work.check_answers(worked, {"Θ": rows})
    assert found.diagnosis == f"positions were counted from {first + shift}"
