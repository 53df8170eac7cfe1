"""Gradients by hand are compared with autograd; a wrong one is detected."""

from dataclasses import replace

import pytest
from typer.testing import CliRunner

from regard import work
from regard.cli import app
from regard.errors import WorkError
from regard.work.families.recurrent.bptt import autograd_as_text, compare_with_autograd


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_every_gradient_of_a_problem_is_autograds(cell):
    worked = work.solve(work.read_problem(f"bptt-{cell}"))
    found = compare_with_autograd(worked)
    weights = {name for name in worked.given if name[0] in "WUb"}
    assert weights <= {one.name for one in found}
    assert max(one.max_error for one in found) < 1e-12


def test_a_wrong_gradient_is_seen():
    worked = work.solve(work.read_problem("bptt-rnn"))
    steps = tuple(
        replace(step, value=step.value.T) if step.name == "dU" else step for step in worked.steps
    )
    found = {one.name: one.max_error for one in compare_with_autograd(replace(worked, steps=steps))}
    assert found["U"] > 0.1
    assert found["W"] < 1e-12
    assert "less than" not in autograd_as_text(
        compare_with_autograd(replace(worked, steps=steps))[1:2]
    )


def test_the_command_shows_them_side_by_side():
    shown = CliRunner().invoke(app, ["work", "bptt-lstm", "--autograd"]).output.splitlines()
    assert shown[0].split() == ["∂J/∂", "max", "|value|", "autograd", "error"]
    assert all(line.endswith("less than 1e-12") for line in shown[1:])


@pytest.mark.usefixtures("users_view")
def test_only_gradients_are_held_to_autograd():
    with pytest.raises(WorkError, match="autograd: needs the family bptt with numbers, got atten"):
        compare_with_autograd(work.solve(work.read_problem("self-attention")))
