"""Recurrence: one step, whole sequences, and parity with torch's cells."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from regard.errors import BackendError, ShapeError
from regard.ops import packed_linear
from regard.ops.recurrence import (
    CellWeights,
    GRUWeights,
    LSTMWeights,
    RNNWeights,
    cpu_with_gates,
    fused,
    gru_step,
    lstm_step,
    recur,
    reference,
    rnn_step,
)

KINDS = {"rnn": RNNWeights, "gru": GRUWeights, "lstm": LSTMWeights}
MODULES = {"rnn": torch.nn.RNN, "gru": torch.nn.GRU, "lstm": torch.nn.LSTM}
CELLS = {"rnn": torch.nn.RNNCell, "gru": torch.nn.GRUCell, "lstm": torch.nn.LSTMCell}
STEPS = {"rnn": rnn_step, "gru": gru_step, "lstm": lstm_step}
kinds, small, switch = st.sampled_from(sorted(KINDS)), st.integers(1, 5), st.booleans()


def double(*sizes: int) -> Tensor:
    return torch.randn(*sizes, dtype=torch.float64)


def weights_of(kind: str, dim: int, hidden: int, bias: bool = True) -> CellWeights:
    rows = len(KINDS[kind].gates) * hidden
    biases = (double(rows), double(rows)) if bias else ()
    return KINDS[kind](double(rows, dim), double(rows, hidden), *biases)


def state_of(weights: CellWeights, *batch: int) -> tuple[Tensor, ...]:
    return tuple(double(*batch, weights.hidden) for _ in weights.states)


def column(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)[:, None]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_step_under_autocast_is_that_of_float32_rounded(kind):
    rows = len(KINDS[kind].gates) * 5
    weights = KINDS[kind](*map(torch.randn, ((rows, 4), (rows, 5), (rows,), (rows,))))
    x, state = torch.randn(3, 4), [s.float() for s in state_of(weights, 3)]
    with torch.autocast("cpu", torch.bfloat16):
        got = STEPS[kind](x, *state, weights)
    want = STEPS[kind](x, *state, weights)
    assert_close([one.float() for one in got], list(want), atol=0.05, rtol=0)


# ---- worked numbers


def test_gru_by_hand():
    """FX10."""
    weights = GRUWeights(w=column(0.5, -0.5, 1), u=column(0.25, 1, -1))
    step = gru_step(column(1)[0], column(0.5)[0], weights)
    want = (0.6513548646660542, 0.5, 0.635148952387287, 0.5880299275886072)
    assert_close(torch.cat(step), column(*want)[:, 0], atol=1e-9, rtol=0)


def test_lstm_by_hand():
    """FX11."""
    weights = LSTMWeights(w=column(0.5, 1, 0, 1), u=column(0.25, 0, 1, -1))
    step = lstm_step(column(1)[0], column(0.5)[0], column(0.5)[0], weights)
    want = (0.6513548647, 0.7310585786, 0.6224593312, 0.4621171573, 0.6665315477, 0.3627031374)
    assert_close(torch.cat(step), column(*want)[:, 0], atol=1e-9, rtol=0)


def test_reset_before_the_product_gives_other_results():
    weights = weights_of("gru", 3, 4, bias=False)
    x, h = double(3), double(4)
    step = gru_step(x, h, weights)
    w, u = weights.gate("candidate")
    other = torch.tanh(w @ x + u @ (step.r * h))
    assert (other - step.candidate).abs().max() > 0.04


def test_z_zero_keeps_the_state_and_moves_it_in_proportion():
    """I8: ‖h' - h‖ = z ‖ĥ - h‖."""
    weights = weights_of("gru", 3, 4)
    h, low = double(4), torch.full((12,), -2e3, dtype=torch.float64)
    shut = gru_step(double(3), h, GRUWeights(weights.w, weights.u, low))
    assert torch.equal(shut.h, h)
    step = gru_step(double(3), h, weights)
    assert_close(step.h - h, step.z * (step.candidate - h))


def test_zero_input_leaves_an_lstm_without_bias_at_zero_only():
    """I11: zero is a fixed point; other states move although the input is zero."""
    weights = weights_of("lstm", 3, 4, bias=False)
    zero = torch.zeros(4, dtype=torch.float64)
    still = lstm_step(torch.zeros(3, dtype=torch.float64), zero, zero, weights)
    assert torch.equal(still.h, zero)
    assert torch.equal(still.c, zero)
    h, c = state_of(weights)
    assert (lstm_step(torch.zeros(3, dtype=torch.float64), h, c, weights).h - h).norm() > 0.1


# ---- properties


@given(st.floats(-700, 700))
def test_sigmoid_of_minus_x_is_one_minus_sigmoid(x):
    """K55, on which the change of sign between K50 and torch rests."""
    x = torch.tensor(x, dtype=torch.float64)
    assert_close(torch.sigmoid(-x), 1 - torch.sigmoid(x), atol=1e-15, rtol=0)


@given(kinds, small, small, switch)
def test_conversions_come_back(kind, dim, hidden, bias):
    weights = weights_of(kind, dim, hidden, bias)
    back = KINDS[kind].from_torch(*weights.to_torch())
    rows = KINDS[kind].from_rows(*weights.to_rows(), weights.w_bias, weights.u_bias)
    for name in ("w", "u", "w_bias", "u_bias") if bias else ("w", "u"):
        assert torch.equal(getattr(back, name), getattr(weights, name))
        assert torch.equal(getattr(rows, name), getattr(weights, name))


def test_row_notation_is_equivalent():
    """K52: x W + h U, gate by gate."""
    weights = weights_of("lstm", 3, 4, bias=False)
    x, (h, c) = double(3), state_of(weights)
    w, u = weights.to_rows()
    i, f, o, new = (x @ w + h @ u).chunk(4)
    c_new = f.sigmoid() * c + i.sigmoid() * new.tanh()
    step = lstm_step(x, h, c, weights)
    assert_close(step.c, c_new)
    assert_close(step.h, o.sigmoid() * c_new.tanh())


def test_direct_path_of_the_cell_is_the_forget_gate():
    """K54 and I18: ∂c'/∂c = diag(f) with h held fixed; over two steps h carries some too."""
    weights = weights_of("lstm", 3, 4)
    x, (h, c) = double(2, 3), state_of(weights)
    jacobian = torch.autograd.functional.jacobian
    direct = jacobian(lambda c: lstm_step(x[0], h, c, weights).c, c)
    first = lstm_step(x[0], h, c, weights)
    assert_close(direct, torch.diag(first.f))

    def two_steps(c: Tensor) -> Tensor:
        now = lstm_step(x[0], h, c, weights)
        return lstm_step(x[1], now.h, now.c, weights).c

    second = lstm_step(x[1], first.h, first.c, weights)
    assert (jacobian(two_steps, c) - torch.diag(first.f * second.f)).abs().max() > 0.01


def test_backpropagation_through_time_is_a_product():
    """K48: ∂h_T/∂h_0 = Π diag(1 - h_t²) U, the last step leftmost."""
    weights = weights_of("rnn", 3, 4)
    x, h = double(6, 3), double(4)
    total = torch.autograd.functional.jacobian(lambda h: recur(x, weights, (h,)).state[0], h)
    product = torch.eye(4, dtype=torch.float64)
    for state in recur(x, weights, (h,)).out:
        product = torch.diag(1 - state**2) @ weights.u @ product
    assert_close(total, product)


def test_a_gru_forgets_only_if_it_also_resets():
    """I9, I10: with z = 1 the old state still enters by U h, unless r = 0."""
    weights = weights_of("gru", 3, 4, bias=False)
    x, jacobian = double(3), torch.autograd.functional.jacobian

    def influence(r: float) -> Tensor:
        low = torch.tensor([1e3, r, 0.0], dtype=torch.float64).repeat_interleave(4)
        cell = GRUWeights(weights.w, weights.u, low)
        return jacobian(lambda h: gru_step(x, h, cell).h, double(4)).norm()

    assert influence(-1e3) == 0
    assert influence(1e3) > 0.1


def test_a_shut_forget_gate_does_not_stop_the_gradient():
    """I12, I13: other paths lead back through i, o and the candidate, unless U = 0."""
    shut = torch.tensor([0.0, -1e3, 0.0, 0.0], dtype=torch.float64).repeat_interleave(4)
    weights, x = weights_of("lstm", 3, 4), double(5, 3).requires_grad_()
    for u, reaches in ((weights.u, True), (torch.zeros_like(weights.u), False)):
        last = recur(x, LSTMWeights(weights.w, u, shut)).state[0]
        (dx,) = torch.autograd.grad(last.sum(), x)
        assert (dx[0].norm() > 0) == reaches
        assert dx[-1].norm() > 0


def test_gates_are_shares_but_no_distribution():
    """I14 to I16: gates in (0, 1), sums are free, cells may be negative."""
    weights = weights_of("lstm", 3, 4)
    gates = recur(double(5, 20, 3), weights, gates=True).gates
    for gate in (gates.i, gates.f, gates.o):
        assert (gate > 0).all()
        assert (gate < 1).all()
        assert (gate.sum(-1) - 1).abs().max() > 0.5
    assert (gates.c < 0).any()


@given(kinds, small, small, st.integers(2, 6), switch)
def test_a_sequence_is_its_steps(kind, dim, hidden, time, reverse):
    weights = weights_of(kind, dim, hidden)
    x, state = double(2, time, dim), state_of(weights, 2)
    run = recur(x, weights, state, reverse=reverse, gates=True, backend="reference")
    for t in reversed(range(time)) if reverse else range(time):
        step = STEPS[kind](x[:, t], *state, weights)
        state = step.state
        for seen, want in zip(run.gates, step, strict=True):
            assert_close(seen[:, t], want)
        assert_close(run.out[:, t], step.h)
    assert_close(run.state, state)


@given(kinds, small, small, st.integers(1, 6), switch, switch, switch, st.data())
def test_all_backends_agree_with_gradients(kind, dim, hidden, time, bias, reverse, ragged, data):
    weights = weights_of(kind, dim, hidden, bias)
    inputs = [double(3, time, dim), *state_of(weights, 3)]
    lengths = None
    if ragged:
        lengths = torch.tensor([data.draw(st.integers(0, time)) for _ in range(3)])
    into = [double(3, time, hidden) for _ in weights.gates]

    def look(backend: str, gates: bool) -> dict[str, Tensor]:
        w = [x for x in (weights.w, weights.u, weights.w_bias, weights.u_bias) if x is not None]
        x, *state, w = *(i.clone().requires_grad_() for i in inputs), w
        w = [p.clone().requires_grad_() for p in w]
        how = {"lengths": lengths, "reverse": reverse, "gates": gates}
        run = recur(x, KINDS[kind](*w), tuple(state), backend=backend, **how)
        loss = (run.out * into[0]).sum() + sum(s.sin().sum() for s in run.state)
        seen = {"out": run.out} | {f"state {i}": s for i, s in enumerate(run.state)}
        if run.gates is not None:
            seen |= {f"gate {name}": gate for name, gate in run.gates._asdict().items()}
            loss = loss + sum((g * i).sum() for g, i in zip(run.gates, into, strict=False))
        grads = torch.autograd.grad(loss, [x, *state, *w])
        return seen | {f"gradient {i}": g for i, g in enumerate(grads)}

    for backend, gates in (("fused", False), ("gates", True)):
        want, got = look("reference", gates), look(backend, gates)
        for name in want:
            assert_close(got[name], want[name], msg=lambda m, n=name, f=backend: f"{f} {n}: {m}")


@given(st.sampled_from(["gru", "lstm"]), small, small, st.integers(1, 6), switch, st.data())
def test_gates_recomputed_after_the_kernel_are_the_same(kind, dim, hidden, time, bias, data):
    """What CUDA does, here on the CPU."""
    weights = weights_of(kind, dim, hidden, bias)
    x, state = double(3, time, dim), state_of(weights, 3)
    lengths = torch.tensor([data.draw(st.integers(1, time)) for _ in range(3)])
    u = weights.u.requires_grad_()
    into = double(3, time, hidden)
    seen = []
    for run in (reference.recur, fused.recur_with_gates):
        out, last, gates = run(x, weights, state, lengths)
        loss = sum((g * into).sum() for g in gates) + sum(s.sum() for s in last)
        seen.append((out, last, *gates, *torch.autograd.grad(loss, u)))
    assert_close(seen[1], seen[0])


@given(kinds, st.sampled_from(["fused", "gates", "reference"]), switch, st.data())
def test_padding_is_not_there(kind, backend, reverse, data):
    weights = weights_of(kind, 3, 4)
    lengths = [data.draw(st.integers(1, 5)) for _ in range(2)]
    x, state = double(2, 5, 3), state_of(weights, 2)
    for row, length in enumerate(lengths):
        x[row, length:] = torch.nan
    how = {"reverse": reverse, "gates": backend != "fused", "backend": backend}
    run = recur(x, weights, state, lengths=torch.tensor(lengths), **how)
    for row, length in enumerate(lengths):
        alone = recur(x[row, :length], weights, tuple(s[row] for s in state), **how)
        assert_close(run.out[row, :length], alone.out)
        assert (run.out[row, length:] == 0).all()
        assert_close(tuple(s[row] for s in run.state), alone.state)
        for seen, want in zip(run.gates or (), alone.gates or (), strict=True):
            assert_close(seen[row, :length], want)
            assert (seen[row, length:] == 0).all()


@pytest.mark.parametrize("backend", ["fused", "gates", "reference"])
def test_a_nan_in_the_padding_does_not_reach_the_gradient(backend):
    w = [p.requires_grad_() for p in (double(12, 3), double(12, 4))]
    x = double(2, 5, 3)
    x[0, 2:] = torch.nan
    run = recur(
        x, GRUWeights(*w), lengths=torch.tensor([2, 5]), backend=backend, gates=backend == "gates"
    )
    loss = run.out.sum() + (run.gates.r.sum() if run.gates else 0)
    assert all(g.isfinite().all() for g in torch.autograd.grad(loss, w))


@given(kinds, st.integers(2, 6), st.data())
def test_a_run_can_be_cut_and_resumed(kind, time, data):
    weights = weights_of(kind, 2, 3)
    cut, x = data.draw(st.integers(1, time - 1)), double(2, time, 2)
    whole = recur(x, weights)
    head = recur(x[:, :cut], weights)
    tail = recur(x[:, cut:], weights, head.state)
    assert_close(torch.cat([head.out, tail.out], 1), whole.out)
    assert_close(tail.state, whole.state)


@pytest.mark.parametrize("backend", ["fused", "gates", "reference"])
def test_leading_axes_are_free(backend):
    weights = weights_of("lstm", 2, 3)
    x, lengths = double(2, 3, 4, 2), torch.tensor([[4, 1, 2], [3, 4, 0]])
    run = recur(x, weights, lengths=lengths, backend=backend, gates=backend == "gates")
    assert run.out.shape == (2, 3, 4, 3)
    one = recur(x[1, 0], weights, lengths=lengths[1, 0], backend=backend)
    assert_close(run.out[1, 0], one.out)
    assert_close(run.state[1][1, 0], one.state[1])


def test_nan_in_the_input_stays_visible():
    x = double(1, 4, 2)
    x[0, 2, 0] = torch.nan
    out = recur(x, weights_of("gru", 2, 3)).out[0]
    assert out[:2].isfinite().all()
    assert out[2:].isnan().all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", ["fused", "gates", "reference"])
def test_gradients_are_right(kind, backend):
    weights = weights_of(kind, 2, 2)
    given_ = (weights.w, weights.u, weights.w_bias, weights.u_bias)
    inputs = [double(2, 3, 2), *state_of(weights, 2), *given_]
    states = len(weights.states)

    def run(x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        cell = KINDS[kind](*rest[states:])
        lengths = torch.tensor([3, 2])
        made = recur(
            x, cell, rest[:states], lengths=lengths, backend=backend, gates=backend == "gates"
        )
        return made.out, *made.state, *(made.gates or ())

    assert torch.autograd.gradcheck(run, [i.requires_grad_() for i in inputs])


def test_the_slopes_of_slopes_come_from_the_reference_alone():
    """The gates backend has its own backward pass, differentiable once; a second one raises."""
    w = [double(9, 2).requires_grad_(), double(9, 3).requires_grad_()]
    for backend, twice in (("reference", True), ("gates", False)):
        walk = recur(double(1, 3, 2), GRUWeights(*w), backend=backend, gates=True)
        (du,) = torch.autograd.grad(walk.out.pow(2).sum(), w[1], create_graph=True)
        if twice:
            assert torch.autograd.grad(du.sum(), w[1])[0].abs().sum() > 0
        else:
            with pytest.raises(RuntimeError, match="once_differentiable"):
                du.sum().backward()


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_stays_near(kind):
    """Twenty steps, weights of scale 1/√hidden: within 0.05 of float64."""
    weights = weights_of(kind, 8, 16)
    w = [p / 4 for p in (weights.w, weights.u, weights.w_bias, weights.u_bias)]
    x = double(2, 20, 8)
    low = [p.bfloat16() for p in w]
    for backend in ("reference", "fused", "gates"):
        got = recur(x.bfloat16(), KINDS[kind](*low), backend=backend).out
        want = recur(x.bfloat16().double(), KINDS[kind](*(p.double() for p in low))).out
        assert (got.double() - want).abs().max() < 0.05


# ---- parity


@given(kinds, small, small, st.integers(1, 6), switch)
def test_same_as_torchs_modules(kind, dim, hidden, time, bias):
    module = MODULES[kind](dim, hidden, bias=bias, batch_first=True).double()
    theirs = [p.detach() for p in module.all_weights[0]]
    cell = KINDS[kind].from_torch(*(p.requires_grad_() for p in theirs))
    x, into = double(3, time, dim), double(3, time, hidden)
    out, last = module(x)
    want = torch.autograd.grad((out * into).sum(), list(module.parameters()))
    for backend in ("reference", "fused"):
        run = recur(x, cell, backend=backend)
        assert_close(run.out, out)
        assert_close(run.state, tuple(s[0] for s in (last if kind == "lstm" else (last,))))
        assert_close(torch.autograd.grad((run.out * into).sum(), theirs), want)


@given(kinds, small, small, switch)
def test_same_as_torchs_cells(kind, dim, hidden, bias):
    cell = CELLS[kind](dim, hidden, bias=bias).double()
    weights = KINDS[kind].from_torch(*(p.detach() for p in cell.parameters()))
    x, state = double(3, dim), state_of(weights, 3)
    theirs = cell(x, state if kind == "lstm" else state[0])
    step = STEPS[kind](x, *state, weights)
    assert_close(step.state, theirs if kind == "lstm" else (theirs,))


def test_torchs_z_without_negation_gives_wrong_results():
    cell = torch.nn.GRUCell(3, 4, bias=False).double()
    w, u = (p.detach() for p in cell.parameters())
    x, h = double(3), double(4)
    swapped = [torch.cat([p[4:8], p[:4], p[8:]]) for p in (w, u)]  # order right, sign wrong
    assert (gru_step(x, h, GRUWeights(*swapped)).h - cell(x, h)).abs().max() > 0.05


@settings(max_examples=10)
@given(kinds, st.data())
def test_same_as_torch_on_packed_sequences(kind, data):
    pack, pad = torch.nn.utils.rnn.pack_padded_sequence, torch.nn.utils.rnn.pad_packed_sequence
    module = MODULES[kind](3, 4, bidirectional=True, batch_first=True).double()
    lengths = torch.tensor([data.draw(st.integers(1, 5)) for _ in range(3)])
    x = double(3, 5, 3)
    packed, last = module(pack(x, lengths, batch_first=True, enforce_sorted=False))
    out = pad(packed, batch_first=True, total_length=5)[0]
    for way in (0, 1):
        cell = KINDS[kind].from_torch(*(p.detach() for p in module.all_weights[way]))
        run = recur(x, cell, lengths=lengths, reverse=bool(way), backend="reference")
        assert_close(run.out, out.chunk(2, -1)[way])
        assert_close(run.state, tuple(s[way] for s in (last if kind == "lstm" else (last,))))


# ---- errors


@pytest.mark.usefixtures("users_view")
def test_error_messages():
    weights = weights_of("lstm", 3, 4)
    x, h = double(2, 5, 3), double(2, 4)
    with pytest.raises(ShapeError, match="x: needs dim=3 as W has columns, got 2"):
        recur(x[..., :2], weights)
    with pytest.raises(ShapeError, match="x: needs at least one time step, got 0"):
        recur(x[:, :0], weights)
    with pytest.raises(ShapeError, match=r"state: needs \(h, c\), got 1 tensors"):
        recur(x, weights, (h,))
    with pytest.raises(ShapeError, match=r"c: needs \(2, 4\), got \(2, 3\)"):
        recur(x, weights, (h, h[:, :3]))
    with pytest.raises(ShapeError, match="lengths: needs 0 to time=5, got 1 to 6"):
        recur(x, weights, lengths=torch.tensor([1, 6]))
    with pytest.raises(ShapeError, match=r"lengths: needs one per sequence, \(2,\), got \(3,\)"):
        recur(x, weights, lengths=torch.tensor([1, 2, 3]))
    with pytest.raises(ShapeError, match="lengths: needs integers"):
        recur(x, weights, lengths=torch.tensor([1.0, 2.0]))
    with pytest.raises(ShapeError, match="lengths: needs x's device, cpu, got meta"):
        recur(x, weights, lengths=torch.tensor([1, 2], device="meta"))
    with pytest.raises(BackendError, match="fused cannot run here, torch's kernels do not return"):
        recur(x, weights, gates=True, backend="fused")
    with pytest.raises(BackendError, match="x and weights need one dtype"):
        recur(x.float(), weights, backend="gates")
    with pytest.raises(
        BackendError, match="backend: needs auto, reference, fused or gates, got 'fast'"
    ):
        recur(x, weights, backend="fast")
    with pytest.raises(ShapeError, match=r"u: needs 3 blocks \(z, r, candidate\) of hidden=4"):
        GRUWeights(weights.w, weights.u)
    with pytest.raises(ShapeError, match="w_bias: needs 16 rows as u has, got 3"):
        LSTMWeights(weights.w, weights.u, double(3))
    with pytest.raises(ShapeError, match="name: needs one of i, f, o, candidate, got 'z'"):
        weights.gate("z")
    with pytest.raises(ShapeError, match=r"h: needs \(2, 4\), got \(2, 3\)"):
        lstm_step(x[:, 0], h[:, :3], h, weights)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize("slow", [True, False])
@pytest.mark.parametrize("batch", [1, 3, 20])
def test_either_library_gives_the_products_of_the_gates(kind, slow, batch, monkeypatch):
    for module in (cpu_with_gates, packed_linear):
        monkeypatch.setattr(module, "mkl_is_slow", lambda: slow)
    weights = weights_of(kind, 6, 8)
    inputs = [double(batch, 18, 6), *state_of(weights, batch)]
    inputs += [weights.w, weights.u, weights.w_bias, weights.u_bias]

    def compute(dtype: torch.dtype, backend: str) -> list[Tensor]:
        x, *rest = (i.detach().to(dtype).requires_grad_() for i in inputs)
        state, w = rest[:-4], KINDS[kind](*rest[-4:])
        run = recur(x, w, tuple(state), gates=True, backend=backend)
        loss = run.out.sin().sum() + sum(gate.cos().sum() for gate in run.gates)
        return [run.out, *run.state, *run.gates, *torch.autograd.grad(loss, [x, *rest])]

    want = compute(torch.float64, "reference")
    for got, one in zip(compute(torch.float32, "gates"), want, strict=True):
        assert_close(got.double(), one, rtol=2e-4, atol=2e-5 * float(one.detach().abs().max()))
