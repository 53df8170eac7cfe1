"""Linear mixers by their recurrence: published forms, brute force, and the shapes they refuse."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from mixer_cases import MIXERS, double
from torch.testing import assert_close

from regard.errors import BackendError, ShapeError
from regard.ops import mixers
from regard.ops.mixers import LinearMixer

exact: Any = {"atol": 1e-12, "rtol": 0}
each_mixer = pytest.mark.parametrize("name", MIXERS)


def test_the_gated_delta_rule_has_the_map_of_its_closed_form():
    m = MIXERS["gated delta"](9)
    g, beta = m.decays[..., 0].cumsum(-1), m.writes
    decay = (g[..., None] - g[..., None, :]).exp().tril()
    low = ((m.k @ m.k.mT) * decay).tril(-1) * beta[..., None]
    eye = torch.eye(9, dtype=torch.float64)
    w = (m.q @ m.k.mT * decay).tril() @ torch.linalg.inv(eye + low) * beta[..., None, :]
    assert_close(mixers.mix_window(m), w, **exact)
    assert_close(mixers.mix(m).out, w @ m.v, **exact)


def test_mamba2_has_the_map_of_its_closed_form():
    c, b, x, dt = double(1, 2, 7, 3), double(1, 2, 7, 3), double(1, 2, 7, 4), double(1, 2, 7).abs()
    a, d = -double(2).abs(), double(2)
    total = (dt * a[:, None]).cumsum(-1)
    w = ((c @ b.mT) * (total[..., None] - total[..., None, :]).exp()).tril() * dt[..., None, :]
    w = w + d[:, None, None] * torch.eye(7, dtype=torch.float64)
    m = mixers.mamba2(c, b, x, dt, a, d)
    assert_close(mixers.mix_window(m), w, **exact)
    assert_close(mixers.mix(m).out, w @ x, **exact)


def test_mlstm_is_its_recurrence_without_a_stabiliser():
    q, k, v = (double(1, 2, 6, 3) for _ in range(3))
    i, f = double(1, 2, 6), double(1, 2, 6)
    state, norm, out = torch.zeros(1, 2, 3, 3).double(), torch.zeros(1, 2, 3).double(), []
    for t in range(6):
        gate, write = torch.sigmoid(f[..., t]), i[..., t].exp()
        pair = k[:, :, t, :, None] * v[:, :, t, None]
        state = gate[..., None, None] * state + write[..., None, None] * pair
        norm = gate[..., None] * norm + write[..., None] * k[:, :, t]
        read = q[:, :, t] * 3**-0.5
        below = (read * norm).sum(-1).abs().clamp(min=1)
        out.append((read[..., None] * state).sum(-2) / below[..., None])
    assert_close(mixers.mix(mixers.mlstm(q, k, v, i, f, eps=0.0)).out, torch.stack(out, 2), **exact)


def test_rwkvs_bonus_reads_the_state_before_the_token_is_written():
    q, k, v = (double(1, 1, 5, 3) for _ in range(3))
    decay, u, state, out = -double(1, 1, 5, 3).abs(), double(1, 3), torch.zeros(3, 3).double(), []
    for t in range(5):
        pair = k[0, 0, t, :, None] * v[0, 0, t]
        out.append(q[0, 0, t] @ (state + u[0, :, None] * pair))
        state = decay[0, 0, t, :, None].exp() * state + pair
    m = mixers.linear_attention(q, k, v, decay, bonus=u)
    assert_close(mixers.mix(m).out[0, 0], torch.stack(out), **exact)


@each_mixer
def test_outputs_are_the_map_times_the_values_and_what_is_read_of_the_initial_state(name):
    m = MIXERS[name](9)
    carried = mixers.mix(replace(m, v=torch.zeros_like(m.v))).out
    assert_close(mixers.mix(m).out, mixers.mix_window(m) @ m.v + carried, **exact)


@each_mixer
def test_not_writing_a_token_moves_outputs_along_one_vector(name):
    m = MIXERS[name](7)
    out = mixers.mix(m).out
    for token in range(7):
        moved = out - mixers.mix(m.without_writes(token)).out
        singular = torch.linalg.svdvals(moved)
        assert (singular[..., 1:] < 1e-12 * (1 + singular[..., :1])).all()
        assert_close(mixers.mix_influence_window(m, keys=token)[..., 0], moved.norm(dim=-1))


def test_tokens_before_a_reset_are_neither_read_nor_written_over():
    m = MIXERS["gated delta"](8)
    resets = torch.zeros(2, 8, dtype=torch.bool)
    resets[:, 3] = True
    names: Any = ("q", "k", "v", "log_decay", "beta")
    parts = [
        replace(m, **{n: getattr(m, n)[:, :, s] for n in names}) for s in (slice(3), slice(3, None))
    ]
    want = torch.cat([mixers.mix(part).out for part in parts], 2)
    assert_close(mixers.mix(replace(m, resets=resets)).out, want, **exact)


def test_half_precision_is_computed_in_float32():
    m = MIXERS["gated delta"](9)
    half: Any = {n: getattr(m, n).bfloat16() for n in ("q", "k", "v", "log_decay", "beta")}
    low = replace(m, **half)
    out, state = mixers.mix(low)
    assert (out.dtype, state.dtype) == (torch.bfloat16, torch.float32)
    assert_close(out, mixers.mix(low.upcast()).out.bfloat16(), atol=0, rtol=0)


def test_an_interceptor_receives_each_mixer_and_may_change_it():
    m, seen = MIXERS["gated delta"](5), []

    def edit(mixer, proceed):
        seen.append(mixer)
        return proceed(mixer.without_writes([0, -1]))

    with mixers.intercepting_mixers(edit):
        out = mixers.mix(m).out
    assert seen == [m]
    assert_close(out, mixers.mix(m.without_writes([0, 4])).out, **exact)


def test_a_survey_counts_distance_surprise_and_rank_by_hand():
    one = torch.ones(1, 1, 3, 1)
    half = torch.full((1, 1, 3), 0.5).log()
    m = LinearMixer(q=one, k=one, v=one, log_decay=half)
    s = mixers.mix_survey(m)
    assert_close(s.mass.flatten(), torch.tensor([1, 1.5, 1.75]))
    assert_close(s.received.flatten(), torch.tensor([1.75, 1.5, 1]))
    assert_close(s.reach.flatten(), torch.tensor([0, 0.5 / 1.5, (0.5 + 2 * 0.25) / 1.75]))
    assert_close(s.half_life.flatten(), torch.ones(3))
    assert_close(s.state_norm.flatten(), torch.tensor([1.75]))
    x = F.pad(torch.eye(2), (0, 0, 0, 1))[None, None]  # the third token writes nothing
    s = mixers.mix_survey(LinearMixer(q=x, k=x, v=x, log_decay=None, delta=True))
    assert s.state_rank.item() == 2
    assert s.surprise.flatten().tolist() == [1, 1, 0]


@pytest.mark.usefixtures("users_view")
def test_wrong_shapes_are_named():
    one = torch.ones(1, 1, 3, 1)
    for name, x in {"k": one[:, :, :2], "log_decay": one[..., 0, 0], "resets": one > 0}.items():
        given: Any = {"q": one, "k": one, "v": one, "log_decay": None} | {name: x}
        with pytest.raises(ShapeError, match=f"{name}: needs"):
            LinearMixer(**given)
    m = LinearMixer(q=one, k=one, v=one, log_decay=None)
    with pytest.raises(ShapeError, match="reads_before: needs delta=False"):
        replace(m, delta=True, reads_before=True)
    with pytest.raises(BackendError, match="backend: needs"):
        mixers.mix(m, backend="tiled")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ShapeError, match="statistics: needs names of mass"):
        mixers.mix_survey(m, statistics=["entropy"])
    with pytest.raises(ShapeError, match="v: needs a multiple of 2 heads"):
        mixers.delta_rule(one.expand(1, 2, 3, 1), one, one.expand(1, 3, 3, 1), None, None)
