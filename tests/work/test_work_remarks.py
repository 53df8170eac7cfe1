"""Remarks of a solution follow the steps in every format."""

import json

from regard import work
from regard.formulas import LATEX_SIGNS
from regard.work.show.formats import as_latex, as_markdown, escape_latex
from regard.work.show.text import as_text
from regard.work.solution import SolutionBuilder


def solved_example():
    working = SolutionBuilder("by hand", {"a": [[1, 2]]})
    working.add_step("b", "exp", "a", title="the exponentials")
    working.add_remark("σ'(0) = ¼: 100% of its {largest} slope, at x_1 ≠ 2")
    return working.build()


def test_remarks_stand_after_the_steps_in_every_format():
    worked = solved_example()
    assert as_text(worked).splitlines()[-2:] == ["Remarks", f" - {worked.remarks[0]}"]
    assert as_markdown(worked).endswith(f"## Remarks\n\n- {worked.remarks[0]}")
    assert json.loads(json.dumps(worked.to_json()))["remarks"] == list(worked.remarks)
    tex = as_latex(worked)
    assert tex.isascii()
    assert "\\item $\\sigma$'(0) = $\\tfrac14$: 100\\% of its \\{largest\\} slope, at x\\_1" in tex


def test_a_solution_without_remarks_says_nothing_of_them():
    worked = work.solve(work.read_problem("gru"))
    assert worked.remarks == ()
    assert "Remarks" not in as_text(worked) + as_latex(worked)


def test_every_sign_that_is_known_is_ascii_in_latex():
    signs = "".join(sign for sign in LATEX_SIGNS if len(sign) == 1)
    assert escape_latex(signs + "⁰¹²³⁴⁵₀₁₂ᵀ⁻").isascii()
