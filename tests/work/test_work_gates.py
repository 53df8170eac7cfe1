"""Statements on gates: each verdict follows from the numbers of torch's cells."""

import pytest
import torch

from regard import work
from regard.errors import WorkError
from regard.work.families.recurrent.cells import solve_gates

PROBLEM = work.read_problem("gates")


def values(change=()):
    return solve_gates({**PROBLEM["given"], **dict(change)}).remarks


def as_tensor(value):
    rows = value.evalf(20).tolist()
    return torch.tensor([[float(x) for x in row] for row in rows], dtype=torch.float64)


def test_the_six_verdicts():
    verdicts = [one.split(":")[1].split()[0].strip(".,;") for one in values()]
    assert verdicts == ["true", "true", "false", "false", "true", "false"]


def test_an_update_gate_near_zero_moves_the_state_by_z_times_the_way():
    worked = work.solve(PROBLEM)
    way = (worked["g"] - worked["h_0"]).evalf(20).norm() / 1000
    assert float(worked["an"][0]) == pytest.approx(float(way))


def test_the_slope_of_a_gru_step_is_that_of_autograd():
    worked = work.solve(PROBLEM)
    w, u, x, h = (as_tensor(worked[name]) for name in ("W", "U", "x", "h_0"))

    def step(h, z, r):
        return (1 - z) * h + z * torch.tanh(w @ x + r * (u @ h))

    for name, r in (("Ja", 0), ("Jb", 1)):
        want = torch.func.jacrev(lambda h, r=r: step(h, 0.999, r))(h)
        assert as_tensor(worked[name]).allclose(want[:, 0, :, 0], atol=1e-12)


def test_what_flows_back_with_a_closed_forget_gate_is_that_of_autograd():
    worked = work.solve(PROBLEM)
    p = {n: as_tensor(worked[n]) for n in ("U_i", "U_c", "h_0")}

    def cell(h):  # x = 0 and f = 0
        return torch.sigmoid(p["U_i"] @ h) * torch.tanh(p["U_c"] @ h)

    want = torch.func.jacrev(cell)(p["h_0"])[:, 0, :, 0]
    assert as_tensor(worked["B"]).allclose(want, atol=1e-12)


def test_without_recurrent_weights_a_closed_forget_gate_does_stop_it():
    zero = [[0, 0], [0, 0]]
    assert "true here" in values({"U_i": zero, "U_c": zero})[3]


def test_a_cell_at_rest_stays_at_rest():
    zero = [[0], [0]]
    assert "true here, since it is at a fixed point" in values({"h": zero, "c": zero})[2]


@pytest.mark.usefixtures("users_view")
def test_what_is_missing_is_named():
    with pytest.raises(WorkError, match="given: needs W, U, x, h, c, W_i"):
        solve_gates({"U_i": 1})
