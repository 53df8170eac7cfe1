"""Recurrent layers against torch's modules, and stacks that keep what the op promises."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from regard.errors import ConfigError, ShapeError
from regard.nn import Recurrent, RecurrentCell, from_torch

THEIRS = {"rnn": torch.nn.RNN, "gru": torch.nn.GRU, "lstm": torch.nn.LSTM}
kinds, small, switch = st.sampled_from(sorted(THEIRS)), st.integers(1, 4), st.booleans()


def double(*sizes: int) -> Tensor:
    return torch.randn(*sizes, dtype=torch.float64)


def named(kind: str, last: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """torch's last state with the batch in front, as ours."""
    return tuple(s.transpose(0, 1) for s in (last if kind == "lstm" else (last,)))


# ---- worked numbers


def test_parameters_are_counted_per_gate():
    """I21: an RNN meets its input with one matrix, a GRU with three, an LSTM with four."""
    counts = {k: RecurrentCell(3, 5, k, bias=False).w.numel() // 15 for k in ("rnn", "gru", "lstm")}
    assert counts == {"rnn": 1, "gru": 3, "lstm": 4}


def test_an_lstm_starts_with_its_forget_gate_open():
    step = RecurrentCell(3, 2, "lstm")(torch.zeros(3))
    assert_close(step.f, torch.sigmoid(torch.ones(2)))
    assert_close(step.i, torch.full((2,), 0.5))


def test_orthogonal_init_preserves_the_norm_of_states():
    h = torch.randn(6)
    for u in RecurrentCell(3, 6, "gru").u.split(6):
        assert_close((u @ h).norm(), h.norm())


# ---- properties


@given(kinds, st.integers(1, 3), switch, st.data())
def test_padding_changes_nothing(kind, layers, bidirectional, data):
    layer = Recurrent(3, 4, kind=kind, layers=layers, bidirectional=bidirectional).double()
    lengths = [data.draw(st.integers(1, 5)) for _ in range(2)]
    x = double(2, 5, 3)
    out, state = layer(x, lengths=torch.tensor(lengths))
    for row, length in enumerate(lengths):
        alone, last = layer(x[row : row + 1, :length])
        assert_close(out[row, :length], alone[0])
        assert (out[row, length:] == 0).all()
        assert_close(tuple(s[row] for s in state), tuple(s[0] for s in last))


@settings(max_examples=10)
@given(kinds, st.integers(1, 2), switch)
def test_the_gates_hold_the_outputs(kind, layers, bidirectional):
    layer = Recurrent(3, 4, kind=kind, layers=layers, bidirectional=bidirectional).double()
    x, lengths = double(2, 5, 3), torch.tensor([5, 2])
    out, state = layer(x, lengths=lengths)
    traces = layer.gates(x, lengths=lengths)
    ways = 2 if bidirectional else 1
    assert len(traces) == layers * ways
    assert_close(torch.cat([trace.h for trace in traces[-ways:]], -1), out)
    if kind == "lstm":
        assert_close(traces[0].c[1, 1], state[1][1, 0])


def test_a_run_can_be_cut_and_resumed():
    layer, x = Recurrent(3, 4, kind="lstm", layers=2).double(), double(2, 6, 3)
    whole, last = layer(x)
    head, state = layer(x[:, :4])
    tail, state = layer(x[:, 4:], state)
    assert_close(torch.cat([head, tail], 1), whole)
    assert_close(state, last)


def test_dropout_is_between_layers_and_only_in_training():
    x = torch.randn(2, 6, 3)
    single, double_ = Recurrent(3, 4, dropout=0.9), Recurrent(3, 4, layers=2, dropout=0.9)
    assert torch.equal(single(x)[0], single(x)[0])
    assert not torch.equal(double_(x)[0], double_(x)[0])
    double_.eval()
    assert torch.equal(double_(x)[0], double_(x)[0])


# ---- parity


@given(kinds, small, small, st.integers(1, 5), st.integers(1, 3), switch, switch)
def test_same_as_torch_with_gradients(kind, dim, hidden, time, layers, bidirectional, bias):
    how = {"bias": bias, "bidirectional": bidirectional}
    theirs = THEIRS[kind](dim, hidden, layers, batch_first=True, **how).double()
    ours = from_torch(theirs)
    x = double(2, time, dim).requires_grad_()
    start = [double(2, layers * (2 if bidirectional else 1), hidden) for _ in range(2)]
    first = [s.transpose(0, 1).contiguous() for s in start]
    want, last = theirs(x, (first[0], first[1]) if kind == "lstm" else first[0])
    into = torch.randn_like(want)
    (dx,) = torch.autograd.grad((want * into).sum(), x, retain_graph=True)
    du = torch.autograd.grad((want * into).sum(), theirs.weight_hh_l0)[0]
    for backend in ("fused", "reference"):
        got, state = ours(x, tuple(start[: 2 if kind == "lstm" else 1]), backend=backend)
        assert_close(got, want)
        assert_close(state, named(kind, last))
        ours_dx, ours_du = torch.autograd.grad((got * into).sum(), [x, ours.cells[0].u])
        assert_close(ours_dx, dx)
        # signs and order differ, sizes do not
        assert_close(ours_du.abs().sum(), du.abs().sum())


# ---- errors


@pytest.mark.usefixtures("users_view")
def test_error_messages():
    with pytest.raises(ConfigError, match="kind: needs rnn, gru or lstm, got 'ltsm'; try lstm"):
        Recurrent(3, 4, kind="ltsm")
    with pytest.raises(ConfigError, match="hidden: needs 1 or more, got 0"):
        Recurrent(3, 0)
    with pytest.raises(ConfigError, match="layers: needs 1 or more, got 0"):
        Recurrent(3, 4, layers=0)
    layer, x = Recurrent(3, 4, kind="lstm"), torch.zeros(2, 5, 3)
    with pytest.raises(ShapeError, match="x: needs dim=3 as W has columns, got 2"):
        layer(x[..., :2])
    with pytest.raises(ShapeError, match="x: needs at least one time step"):
        layer(x[:, :0])
    with pytest.raises(ShapeError, match=r"state: needs \(h, c\), each \(2, 1, 4\), got"):
        layer(x, (torch.zeros(2, 1, 4),))
    with pytest.raises(ShapeError, match="lengths: needs 0 to time=5, got 1 to 9"):
        layer(x, lengths=torch.tensor([1, 9]))
    with pytest.raises(ShapeError, match=r"state: needs \(h, c\), got 1 tensors"):
        RecurrentCell(3, 4, "lstm")(x[:, 0], (torch.zeros(2, 4),))
    with pytest.raises(ConfigError, match="layer: needs tanh and no projection, got LSTM, proj_si"):
        from_torch(torch.nn.LSTM(3, 4, proj_size=2))
    with pytest.raises(ConfigError, match="layer: needs tanh and no projection, got RNN_RELU"):
        from_torch(torch.nn.RNN(3, 4, nonlinearity="relu"))
