"""Recurrent layers that attend: to their own past, and to a source."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from regard.errors import ConfigError, ShapeError
from regard.nn import AttentiveRecurrent, BahdanauDecoder, LuongDecoder, Recurrent, StateAttention
from regard.ops import additive, attend, bilinear, dot, scaled_dot
from regard.ops.intercept import intercepting

kinds = st.sampled_from(["rnn", "gru", "lstm"])
scores = st.sampled_from(["dot", "scaled_dot", "additive"])


def double(*sizes: int) -> Tensor:
    return torch.randn(*sizes, dtype=torch.float64)


def empty_history(layer: AttentiveRecurrent, batch: int) -> tuple[Tensor, ...]:
    count = 2 if layer.kind == "lstm" else 1
    return layer.initial_state(
        tuple(double(batch, layer.layers, layer.hidden) for _ in range(count))
    )


# ---- worked numbers


def test_the_first_two_steps_by_hand():
    """K56: a_1 = 0, and with one state behind it a_2 = h_1 whatever the score."""
    layer = AttentiveRecurrent(1, 1, kind="rnn", combine="sum", bias=False).double()
    with torch.no_grad():
        layer.cells[0].w.fill_(1.0)
        layer.cells[0].u.fill_(0.5)
    out, _ = layer(torch.tensor([[[1.0], [2.0]]], dtype=torch.float64))
    h1 = torch.tanh(torch.tensor(1.0, dtype=torch.float64))
    h2 = torch.tanh(2 + 0.5 * h1) + h1
    assert_close(out.flatten(), torch.stack([h1, h2]))


@given(kinds, scores, st.sampled_from(["norm", "sum"]))
def test_each_state_matches_the_equation(kind, score, combine):
    """K56 and J1, J2: the query is the state before a_t is added, the keys are earlier states."""
    layer = AttentiveRecurrent(3, 4, kind=kind, score=score, combine=combine).double()
    x = double(1, 5, 3)
    out, _ = layer(x)
    cell, attention, norm = layer.cells[0], layer.attentions[0], layer.norms[0]
    how = {"dot": dot, "scaled_dot": scaled_dot}.get(score)
    state, past = cell.zero_state((1,)), []
    for t in range(5):
        step = cell(x[:, t], state)
        h = step.h
        if past:
            keys = torch.cat(past)
            if how is None:
                w_q, w_k = attention.to_query.weight.mT, attention.to_key.weight.mT
                raw = additive(h, keys, w_q, w_k, attention.v)
            else:
                raw = how(h, keys)
            h = h + raw.softmax(-1) @ keys
        h = norm(h)
        past.append(h)
        state = (h, *step.state[1:])
        assert_close(out[:, t], h)


@pytest.mark.parametrize("kind", ["rnn", "lstm"])
def test_the_sum_grows_with_time_and_the_norm_does_not(kind):
    """J4: the sum of a tanh-bounded state and a mean of earlier ones is bounded by t alone."""
    x = torch.randn(2, 120, 8)
    largest = {}
    for combine in ("sum", "norm"):
        torch.manual_seed(0)
        with torch.no_grad():
            out, _ = AttentiveRecurrent(8, 16, kind=kind, score="dot", combine=combine)(x)
        largest[combine] = out.abs().amax((0, 2))
    assert (largest["sum"] <= torch.arange(1, 121) + 1e-3).all()
    assert largest["sum"][-1] > 30
    assert largest["norm"].max() <= 16**0.5  # a normed vector cannot have a larger entry


def test_the_plain_sum_of_a_gru_grows_faster_than_time():
    """A GRU adds a_t to a state it may have kept, so t is not a bound."""
    with torch.no_grad():
        out, _ = AttentiveRecurrent(8, 16, kind="gru", score="dot", combine="sum")(
            torch.randn(2, 60, 8)
        )
    assert out[:, -1].abs().max() > 1000


# ---- properties


@settings(max_examples=12)
@given(kinds, scores, st.integers(1, 2), st.data())
def test_padding_changes_nothing(kind, score, layers, data):
    layer = AttentiveRecurrent(3, 4, kind=kind, score=score, layers=layers).double()
    lengths = [data.draw(st.integers(1, 5)) for _ in range(2)]
    x = double(2, 5, 3)
    for row, length in enumerate(lengths):
        x[row, length:] = torch.nan
    out, state = layer(x, lengths=torch.tensor(lengths))
    for row, length in enumerate(lengths):
        alone, (*last, _) = layer(x[row : row + 1, :length])
        assert_close(out[row, :length], alone[0])
        assert (out[row, length:] == 0).all()
        assert_close(tuple(s[row] for s in state), tuple(s[0] for s in last))


@settings(max_examples=12)
@given(kinds, scores, st.integers(1, 2), st.integers(1, 4))
def test_a_run_can_be_cut_and_resumed(kind, score, layers, cut):
    layer = AttentiveRecurrent(3, 4, kind=kind, score=score, layers=layers).double()
    x, start = double(2, 5, 3), empty_history(layer, 2)
    whole, last = layer(x, start)
    head, state = layer(x[:, :cut], start)
    tail, state = layer(x[:, cut:], state)
    assert_close(torch.cat([head, tail], 1), whole)
    assert_close(state, last)


def test_causal_outputs_do_not_depend_on_later_tokens():
    layer, x = AttentiveRecurrent(3, 4), torch.randn(1, 6, 3)
    before, _ = layer(x)
    x[:, 4:] = 7.0
    assert torch.equal(layer(x)[0][:, :4], before[:, :4])


def test_every_attention_can_be_intercepted():
    """One call a step after the first, with one more key each time."""
    keys = []

    def watch(call, proceed):
        keys.append(call.k.shape[-2])
        return proceed(call)

    with intercepting(watch):
        AttentiveRecurrent(3, 4)(torch.randn(1, 5, 3))
    assert keys == [1, 2, 3, 4]


@settings(max_examples=10)
@given(kinds, scores)
def test_gradients_are_right(kind, score):
    layer = AttentiveRecurrent(2, 2, kind=kind, score=score).double()
    x = double(1, 3, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, u: layer(x)[0], (x, layer.cells[0].u))


@given(st.sampled_from(["dot", "scaled_dot", "general", "additive"]), st.booleans())
def test_a_score_by_name_is_the_op(score, ragged):
    layer = StateAttention(4, 4, score).double()
    q, source = double(2, 3, 4), double(2, 5, 4)
    lengths = torch.tensor([5, 2]) if ragged else None
    raw = {
        "dot": lambda: dot(q, source),
        "scaled_dot": lambda: scaled_dot(q, source),
        "general": lambda: bilinear(q, source, layer.to_key.weight),
        "additive": lambda: additive(
            q, source, layer.to_query.weight.mT, layer.to_key.weight.mT, layer.v
        ),
    }[score]()
    if ragged:
        raw[1, :, 2:] = -torch.inf
    assert_close(layer(q, layer.project_keys(source), source, lengths), raw.softmax(-1) @ source)


def decoder(name: str, kind: str, layers: int = 1) -> BahdanauDecoder | LuongDecoder:
    how = {"kind": kind, "layers": layers}
    if name == "bahdanau":
        return BahdanauDecoder(Recurrent(3 + 6, 4, **how), 6).double()
    core = AttentiveRecurrent(3, 4, **how) if name == "hybrid" else Recurrent(3, 4, **how)
    return LuongDecoder(core, 6).double()


def memory_of(layer: BahdanauDecoder | LuongDecoder, lengths: Tensor | None = None):
    count = 2 if layer.core.kind == "lstm" else 1
    state = tuple(double(2, layer.core.layers, 4) for _ in range(count))
    return layer.make_memory(double(2, 5, 6), lengths, state=state)


decoders = st.sampled_from(["bahdanau", "luong", "hybrid"])


@settings(max_examples=12)
@given(decoders, kinds, st.integers(1, 2))
def test_a_known_target_is_processed_as_step_by_step(name, kind, layers):
    layer = decoder(name, kind, layers)
    memory, x = memory_of(layer), double(2, 4, 3)
    whole, last = layer(x, memory.state, memory)
    state, outs = memory.state, []
    for t in range(4):
        out, state = layer(x[:, t : t + 1], state, memory)
        outs.append(out)
    assert_close(torch.cat(outs, 1), whole)
    assert_close(state, last)


@given(decoders, kinds)
def test_source_padding_changes_nothing(name, kind):
    layer = decoder(name, kind)
    memory, x = memory_of(layer, torch.tensor([5, 3])), double(2, 4, 3)
    out, _ = layer(x, memory.state, memory)
    one = memory.select(torch.tensor([1]))
    short = one._replace(values=one.values[:, :3], keys=one.keys[:, :3], lengths=None)
    assert_close(layer(x[1:], short.state, short)[0], out[1:])


def test_bahdanau_attends_with_the_previous_state():
    layer = decoder("bahdanau", "gru")
    memory, x = memory_of(layer), double(2, 1, 3)
    h = memory.state[0][:, -1:]
    att = layer.cross_attention
    w_q, w_k = att.to_query.weight.mT, att.to_key.weight.mT
    raw = additive(h, memory.values, w_q, w_k, att.v)
    c = raw.softmax(-1) @ memory.values
    want = layer.core.cells[0](torch.cat([x, c], -1)[:, 0], (h[:, 0],)).h
    assert_close(layer(x, memory.state, memory)[0][:, 0], want)


def test_luong_attends_with_the_new_state():
    layer = decoder("luong", "gru")
    memory, x = memory_of(layer), double(2, 1, 3)
    h = layer.core.cells[0](x[:, 0], (memory.state[0][:, 0],)).h[:, None]
    c, _ = attend(h, memory.keys, memory.values, scale=1.0)
    want = torch.tanh(layer.mix(torch.cat([c, h], -1)))
    assert_close(layer(x, memory.state, memory)[0], want)


# ---- errors


@pytest.mark.usefixtures("users_view")
def test_error_messages():
    with pytest.raises(ConfigError, match="score: needs dot, .*, got 'aditive'; try additive"):
        AttentiveRecurrent(3, 4, score="aditive")
    with pytest.raises(ConfigError, match="combine: needs norm or sum, got 'gate'"):
        AttentiveRecurrent(3, 4, combine="gate")
    with pytest.raises(ConfigError, match="source_dim: needs dim=4 for a dot score, got 6; try"):
        StateAttention(4, 6, "dot")
    with pytest.raises(ConfigError, match="core: needs dim of the input"):
        BahdanauDecoder(Recurrent(3, 4), 6)
    layer, x = AttentiveRecurrent(3, 4), torch.zeros(2, 5, 3)
    with pytest.raises(ShapeError, match="x: needs dim=3, got 2"):
        layer(x[..., :2])
    with pytest.raises(ShapeError, match="x: needs at least one time step"):
        layer(x[:, :0])
    with pytest.raises(ShapeError, match="lengths: needs 0 to time=5, got 1 to 9"):
        layer(x, lengths=torch.tensor([1, 9]))
    _, state = layer(x, lengths=torch.tensor([1, 5]))
    with pytest.raises(
        ShapeError, match=r"state: needs \(h, history\), got 1 tensors; try initial_state"
    ):
        layer(x, state)
    with pytest.raises(ShapeError, match=r"h: needs batch, layer, hidden of \(2, 1, 4\), got"):
        layer(x, layer.initial_state((torch.zeros(3, 1, 4),)))
