"""Claims about the gates of GRU and LSTM."""

import torch
from torch import Tensor

from regard.claims.charts import Bars, Lines, Maps
from regard.claims.claim import Evidence, Trial, claim
from regard.ops import GRUWeights, LSTMStep, LSTMWeights, gru_step, lstm_step, recur

HIDDEN, DIM = 6, 4
OPEN, SHUT = 40.0, -40.0  # biases that set a gate to 1 or 0 in float64


@claim("I7", source="exercises", verdict="true")
def sigmoid_symmetry(trial: Trial) -> Evidence:
    """The sigmoid satisfies σ(−x) = 1 − σ(x).

    Refutation: a remainder after symbolic simplification, or a difference in float64
    """
    import sympy

    x = sympy.Symbol("x", real=True)
    sigma = 1 / (1 + sympy.exp(-x))
    remainder = sympy.simplify(sigma.subs(x, -x) - (1 - sigma))
    grid = torch.linspace(-30, 30, 601, dtype=torch.float64)
    left, right = torch.sigmoid(-grid), 1 - torch.sigmoid(grid)
    error = (left - right).abs().max()
    curves = {"σ(−x)": left[200:401], "1 − σ(x)": right[200:401]}
    return Evidence(
        holds=remainder == 0 and error < 1e-15,
        measures={"largest difference in float64": error},
        note=f"Symbolic remainder: {remainder}.",
        chart=Lines(grid[200:401], curves, "x", "value"),
    )


@claim("I8", source="exercises", verdict="true")
def small_update_gate(trial: Trial) -> Evidence:
    """A GRU whose update gate z is near 0 keeps its state.

    Remark: In the convention h' = (1 − z) h + z ĥ; the z of torch is 1 − z.
    Refutation: a change of the state that is not z · ‖ĥ − h‖, or that stays as z goes to 0
    """
    weights, x, h = _gru(trial), trial.normal(DIM), trial.normal(HIDDEN)
    biases = torch.linspace(-14, 6, 21).tolist()
    steps = [gru_step(x, h, _set_gate(weights, "z", bias)) for bias in biases]
    z = torch.stack([s.z.max() for s in steps])
    change = torch.stack([(s.h - h).norm() for s in steps])
    law = torch.stack([(s.z * (s.candidate - h)).norm() for s in steps])
    error = (change - law).abs().max()
    return Evidence(
        holds=error < 1e-12 and change[0] < 1e-4,
        measures={
            f"‖h' − h‖ at z = {z[0]:.1e}": change[0],
            "largest |‖h' − h‖ − ‖z (ĥ − h)‖|": error,
        },
        chart=Lines(z, {"‖h' − h‖": change}, "largest z", "change", log="xy"),
    )


@claim("I9", source="exercises", verdict="true")
def reset_and_update_forget(trial: Trial) -> Evidence:
    """A GRU with z near 1 and r near 0 forgets its state.

    Refutation: a new state that still depends on the old one
    """
    grid = _dependence_on_state(trial)
    forgotten, largest = grid[-1, 0], grid.max()
    return Evidence(
        holds=forgotten < 1e-6 and largest > 0.1,
        measures={"‖∂h'/∂h‖ at z = 1, r = 0": forgotten, "largest elsewhere": largest},
        chart=Maps({"‖∂h'/∂h‖": grid}, "r: 0 to 1", "z: 0 to 1"),
    )


@claim("I10", source="exercises", verdict="false")
def update_gate_alone_discards(trial: Trial) -> Evidence:
    """A GRU with z near 1 discards its state, whatever r is.

    Correction: The candidate still reads the state through r, so the state is discarded only if
        r is 0 too.
    Refutation: no dependence on the old state at z = 1 and r = 1
    """
    last = _dependence_on_state(trial)[-1]  # z = 1
    return Evidence(
        holds=last.max() < 1e-3,
        corrected=last[0] < 1e-6 < 0.1 < last[-1],
        measures={"‖∂h'/∂h‖ at z = 1, r = 1": last[-1], "at r = 0": last[0]},
        chart=Lines(torch.linspace(0, 1, len(last)), {"z = 1": last}, "r", "‖∂h'/∂h‖"),
    )


@claim("I11", source="exercises", verdict="true")
def zero_input_changes_state(trial: Trial) -> Evidence:
    """An LSTM whose input is 0 does not simply repeat its state.

    Remark: Without biases h = c = 0 is a fixed point.
    Refutation: random states that a step with x = 0 leaves as they are
    """

    def change() -> Tensor:
        weights, h, c = _lstm(trial), trial.normal(HIDDEN).tanh(), trial.normal(HIDDEN)
        return (lstm_step(torch.zeros_like(h[:DIM]), h, c, weights).h - h).norm()

    changes = torch.stack([change() for _ in range(100)])
    zero = torch.zeros(HIDDEN, dtype=torch.float64)
    fixed = lstm_step(zero[:DIM], zero, zero, _lstm(trial)).h.norm()
    curves = {"random states": changes.sort().values, "h = c = 0": fixed.expand(100)}
    return Evidence(
        holds=changes.min() > 1e-3,
        measures={"‖h' − h‖ with x = 0": changes, "from h = c = 0, without biases": fixed},
        chart=Lines(range(100), curves, "draw, sorted", "‖h' − h‖"),
    )


@claim("I12", source="exercises", verdict="conditional")
def gradients_at_forget_zero(trial: Trial) -> Evidence:
    """A forget gate of 0 does not stop back-propagation through time in an LSTM.

    Condition: The recurrent weights U are not 0: gradients flow through i, o and the candidate.
    Refutation: zero gradients with U ≠ 0, or gradients of earlier inputs with U = 0
    """
    with_u, without_u = (_input_gradients(trial, forget=SHUT, u_gain=g) for g in (1.0, 0.0))
    flows = with_u.min() > 1e-6
    bars = {f"x{t + 1}": {"U random": with_u[t], "U = 0": without_u[t]} for t in range(5)}
    return Evidence(
        holds=flows and without_u.min() > 1e-6,
        holds_if=flows and without_u[:-1].max() < 1e-12,
        measures={"‖∂h₅/∂x₁‖ with f = 0": with_u[0], "the same with U = 0": without_u[0]},
        chart=Bars(bars, "‖∂h₅/∂x‖"),
    )


@claim("I13", source="exercises", verdict="conditional")
def forget_zero_vanishes(trial: Trial) -> Evidence:
    """A forget gate near 0 makes the gradient through time vanish.

    Condition: The sequence is long and the recurrent weights U are not large. The path through
        the cell vanishes at once; the paths through the gates vanish step by step.
    Refutation: with U of ordinary size, a gradient that stays over 20 steps, or one that vanishes
        over 5 together with the product of forget gates
    """
    steps, names = [2, 5, 10, 20], {"all paths": 1.0, "all paths, 8 U": 8.0}
    curves = {
        name: [_input_gradients(trial, -8.0, gain, n)[0] for n in steps]
        for name, gain in names.items()
    }
    (_, ordinary, _, last), (*_, large) = curves.values()
    f = float(torch.sigmoid(torch.tensor(-8.0)))
    direct = {"product of forget gates (to 1e-20)": [max(f ** (n - 1), 1e-20) for n in steps]}
    return Evidence(
        holds=max(ordinary, last, large) < 1e-6,
        holds_if=f**4 < 1e-12 and ordinary > 1e-6 and last < 1e-9 and large > 1e-4,
        measures={
            "‖∂h₅/∂x₁‖ at f = 0.0003": ordinary,
            "‖∂h₂₀/∂x₁‖": last,
            "‖∂h₂₀/∂x₁‖, U eight times as large": large,
            "product of the forget gates over 5 steps": f**4,
        },
        chart=Lines(steps, curves | direct, "steps T", "‖∂h_T/∂x₁‖ at f = 0.0003", log="y"),
    )


@claim("I14", source="exercises", verdict="true")
def gates_between_zero_and_one(trial: Trial) -> Evidence:
    """The gates of an LSTM lie strictly between 0 and 1.

    Remark: In floating point they round to 0 or 1 for inputs beyond about ±17 (float32: 1 only).
    Refutation: a gate of 0, 1 or outside, for inputs of ordinary size
    """
    gates = _lstm_gates(trial, 3 * trial.normal(200, 20, DIM))
    values = torch.cat([g.flatten() for g in (gates.i, gates.f, gates.o)])
    counts = torch.histc(values, 20, 0, 1)
    return Evidence(
        holds=values.min() > 0 and values.max() < 1,
        measures={"smallest": values.min(), "largest": values.max()},
        chart=Lines(torch.linspace(0.025, 0.975, 20), {"gates": counts}, "value", "count"),
    )


@claim("I15", source="exercises", verdict="false")
def cells_stay_positive(trial: Trial) -> Evidence:
    """The forget gate keeps the cell state of an LSTM from becoming negative.

    Correction: The candidate is a tanh, so cells are negative as often as positive.
    Refutation: no negative cell state
    """
    cells = _lstm_gates(trial, trial.normal(200, 20, DIM)).c.flatten()
    share = (cells < 0).double().mean()
    counts = torch.histc(cells, 30, -3, 3)
    return Evidence(
        holds=share == 0,
        corrected=0.4 < share < 0.6,
        measures={"share of negative cells": share, "smallest": cells.min()},
        chart=Lines(torch.linspace(-2.9, 2.9, 30), {"cells": counts}, "cell state", "count"),
    )


@claim("I16", source="exercises", verdict="true")
def gates_are_no_distribution(trial: Trial) -> Evidence:
    """The gates of an LSTM are not probability distributions over the units.

    Refutation: gates that sum to 1 over the units
    """
    gates = _lstm_gates(trial, trial.normal(200, 20, DIM))
    sums = {name: getattr(gates, name).sum(-1).flatten() for name in "ifo"}
    far = torch.cat(list(sums.values())).sub(1).abs().gt(0.01).double().mean()
    counts = {name: torch.histc(s, 30, 0, 6) for name, s in sums.items()}
    bins = torch.linspace(0.1, 5.9, 30)
    return Evidence(
        holds=far > 0.9,
        measures={
            "share of gates whose sum differs from 1 by 0.01 or more": far,
            **{f"sum of {name} over {HIDDEN} units": s for name, s in sums.items()},
        },
        chart=Lines(bins, counts, "sum of a gate over the units", "count"),
    )


@claim("I17", source="exercises", verdict="conditional")
def weight_gradient_readings(trial: Trial) -> Evidence:
    """The gradient of an LSTM's weight is the sum over steps of ∂J/∂h_t · ∂h_t/∂W.

    Condition: ∂J/∂h_t is the direct partial derivative, ∂h_t/∂W the total one, through h and c.
    Refutation: a reading other than that one that agrees with autograd, or that one failing
    """
    readings = [_gradient_readings(trial) for _ in range(10)]
    errors = {name: max(x[name] for x in readings) for name in readings[0]}
    right, *others = errors.values()
    return Evidence(
        holds=max(errors.values()) < 1e-10,
        holds_if=right < 1e-10 and min(others) > 1e-3,
        measures={"relative error": errors},
        chart=Bars(errors, "relative error", log="y"),
    )


@claim("I18", source="exercises", verdict="conditional")
def cell_jacobian_is_forget_gate(trial: Trial) -> Evidence:
    """∂c_t/∂c_{t−1} = f_t in an LSTM.

    Condition: h_{t−1} is held fixed. It depends on c_{t−1} too, so the total derivative has
        further terms.
    Refutation: a Jacobian with fixed h that is not diag(f), or a total one that is
    """
    weights, x, o = _lstm(trial), trial.normal(DIM), trial.uniform(HIDDEN)
    c = trial.normal(HIDDEN)
    h = o * c.tanh()
    f = torch.diag(lstm_step(x, h, c, weights).f)
    maps = {
        "h fixed": torch.func.jacrev(lambda c: lstm_step(x, h, c, weights).c)(c),
        "total": torch.func.jacrev(lambda c: lstm_step(x, o * c.tanh(), c, weights).c)(c),
    }
    fixed, total = ((jacobian - f).abs().max() for jacobian in maps.values())
    return Evidence(
        holds=total < 1e-10,
        holds_if=fixed < 1e-12,
        measures={"largest difference from diag(f), h fixed": fixed, "total derivative": total},
        chart=Maps(maps, "c before", "c after"),
    )


@claim("I19", source="exercises", verdict="conditional")
def forget_near_one_flows(trial: Trial) -> Evidence:
    """A forget gate near 1 lets gradients flow unhindered through an LSTM.

    Condition: 1 − f is at most about 1/T: over T steps the direct path is scaled by f^T.
    Refutation: a gradient that survives 100 steps at f = 0.9, or that decays at 1 − f = 1/T
    """
    lengths, gates = [1, 3, 10, 30, 100, 300], (0.9, 0.99, 0.999)
    curves = {f: [_cell_gradient(f, n) for n in lengths] for f in gates}
    within = [x for f in gates for n, x in zip(lengths, curves[f], strict=True) if n * (1 - f) <= 1]
    named = {f"f = {f}": curve for f, curve in curves.items()}
    return Evidence(
        holds=min(min(c) for c in curves.values()) > 0.3,
        holds_if=min(within) > 0.3,
        measures={"∂c₁₀₀/∂c₀ at f = 0.9": curves[0.9][4], "at f = 0.999": curves[0.999][4]},
        chart=Lines(lengths, named, "steps T", "∂c_T/∂c₀", log="x"),
    )


def _gru(trial: Trial) -> GRUWeights:
    w, u = trial.normal(3 * HIDDEN, DIM), trial.normal(3 * HIDDEN, HIDDEN)
    return GRUWeights(w / DIM**0.5, u / HIDDEN**0.5)


def _lstm(trial: Trial, u_gain: float = 1.0, forget: float = 0.0) -> LSTMWeights:
    w, u = trial.normal(4 * HIDDEN, DIM), trial.normal(4 * HIDDEN, HIDDEN)
    bias = torch.zeros(4 * HIDDEN, dtype=torch.float64)
    bias[HIDDEN : 2 * HIDDEN] = forget
    return LSTMWeights(w / DIM**0.5, u_gain * u / HIDDEN**0.5, bias)


def _lstm_gates(trial: Trial, x: Tensor) -> LSTMStep:
    gates = recur(x, _lstm(trial), gates=True).gates
    assert isinstance(gates, LSTMStep)
    return gates


def _set_gate(weights: GRUWeights, gate: str, bias: float) -> GRUWeights:
    """The weights, with a bias of one gate, whose other weights are 0."""
    place = weights.gates.index(gate)
    rows = slice(place * HIDDEN, (place + 1) * HIDDEN)
    w, u = weights.w.clone(), weights.u.clone()
    biases = w.new_zeros(len(w)) if weights.w_bias is None else weights.w_bias.clone()
    w[rows], u[rows], biases[rows] = 0, 0, bias
    return GRUWeights(w, u, biases)


def _dependence_on_state(trial: Trial) -> Tensor:
    """Norms of ∂h'/∂h of a GRU: one row per z from 0 to 1, one column per r."""
    weights, x, h = _gru(trial), trial.normal(DIM), trial.normal(HIDDEN)
    levels = [SHUT, -1.1, 0.0, 1.1, OPEN]
    rows = []
    for z in levels:
        for r in levels:
            forced = _set_gate(_set_gate(weights, "z", z), "r", r)
            jacobian = torch.func.jacrev(lambda h, forced=forced: gru_step(x, h, forced).h)(h)
            rows.append(torch.linalg.matrix_norm(jacobian, 2))
    return torch.stack(rows).view(5, 5)


def _input_gradients(trial: Trial, forget: float, u_gain: float = 1.0, steps: int = 5) -> Tensor:
    """Norms of ∂h_T/∂x_t, t = 1 … T, of an LSTM whose forget gate is set by a bias."""
    trial.rng.manual_seed(trial.seed)
    forced = _lstm(trial, u_gain, forget)
    rows = slice(HIDDEN, 2 * HIDDEN)
    forced.w[rows], forced.u[rows] = 0, 0
    x = trial.normal(steps, DIM)
    jacobian = torch.func.jacrev(lambda x: recur(x, forced, backend="reference").out[-1])(x)
    return torch.linalg.matrix_norm(jacobian.movedim(1, 0), 2)


def _cell_gradient(f: float, steps: int) -> float:
    """∂c_T/∂c₀ of an LSTM with U = 0 and a constant forget gate."""
    bias = torch.zeros(4, dtype=torch.float64)
    bias[1] = torch.logit(torch.tensor(f, dtype=torch.float64))
    weights = LSTMWeights(bias.new_zeros(4, 1), bias.new_zeros(4, 1), bias)
    c = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    x, h = torch.zeros(steps, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    _, last = recur(x, weights, (h, c), backend="reference").state
    return float(torch.autograd.grad(last.sum(), c)[0])


def _gradient_readings(trial: Trial) -> dict[str, float]:
    """Relative errors of three readings of Σ_t ∂J/∂h_t · ∂h_t/∂W against autograd."""
    weights, x = _lstm(trial), trial.normal(4, DIM)
    targets = trial.normal(4, HIDDEN)

    def states(w: Tensor, *, through_h: bool = True) -> list[Tensor]:
        h, c = (torch.zeros(HIDDEN, dtype=torch.float64) for _ in range(2))
        out = []
        for x_t in x:
            step = lstm_step(x_t, h if through_h else h.detach(), c, LSTMWeights(w, weights.u))
            h, c = step.h, step.c
            out.append(h)
        return out

    w = weights.w.clone().requires_grad_()
    hs = states(w)
    loss = sum(((h - y) ** 2).sum() for h, y in zip(hs, targets, strict=True))
    assert isinstance(loss, Tensor)
    (exact,) = torch.autograd.grad(loss, w, retain_graph=True)
    total = torch.autograd.grad(loss, hs, retain_graph=True)
    direct = [2 * (h - y).detach() for h, y in zip(hs, targets, strict=True)]
    short = states(w, through_h=False)

    def contract(first: list[Tensor], outputs: list[Tensor]) -> float:
        (sum_,) = torch.autograd.grad(outputs, w, first, retain_graph=True)
        return float((sum_ - exact).norm() / exact.norm())

    return {
        "direct · total": contract(direct, hs),
        "total · total": contract(list(total), hs),
        "direct, c-path only": contract(direct, short),
    }
