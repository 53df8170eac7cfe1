"""Chunked linear mixers: the recurrence, for any length, chunk, start and precision."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from mixer_cases import MIXERS, double
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from regard.errors import ShapeError
from regard.ops import mixers
from regard.ops.mixers import chunked
from regard.ops.mixers.statistics import MIXER_STATISTICS

exact: Any = {"atol": 1e-12, "rtol": 1e-12}
each_mixer = pytest.mark.parametrize("name", MIXERS)
LENGTHS = [1, 64, 131]


@each_mixer
@pytest.mark.parametrize("n", LENGTHS)
def test_outputs_and_state_are_those_of_the_recurrence(name, n):
    m = MIXERS[name](n)
    want, got = (mixers.mix(m, backend=b) for b in ("reference", "chunked"))
    assert_close(tuple(got), tuple(want), **exact)


@each_mixer
@pytest.mark.parametrize("chunk", [1, 13, 100])
def test_any_chunk_gives_the_same(name, chunk):
    m = MIXERS[name](29)
    want = mixers.mix(m, backend="reference")
    out, _, state = chunked.run(m, chunk)
    assert_close((out, state), tuple(want), **exact)


@each_mixer
@pytest.mark.parametrize(
    ("rows", "keys"),
    [
        ((0, 70), (0, 70)),
        ((60, 70), (0, 70)),
        ((0, 70), (5, 9)),
        ((3, 6), (40, 70)),
        (65, 2),
        (2, 2),
    ],
)
def test_a_window_is_part_of_the_map(name, rows, keys):
    m = MIXERS[name](70)
    rows, keys = (slice(*x) if isinstance(x, tuple) else x for x in (rows, keys))
    want, got = (mixers.mix_window(m, rows, keys, backend=b) for b in ("reference", "chunked"))
    assert_close(got, want, **exact)


@each_mixer
def test_a_window_of_influence_is_that_of_running_without_each_write(name):
    m, rows, keys = MIXERS[name](20), slice(5, 20), slice(3, 12)
    want, got = (
        mixers.mix_influence_window(m, rows, keys, backend=b) for b in ("reference", "chunked")
    )
    assert_close(got, want, **exact)


@each_mixer
@pytest.mark.parametrize("n", [7, 130])
def test_statistics_are_those_of_the_definitions(name, n):
    m = MIXERS[name](n)
    want, got = (mixers.mix_survey(m, backend=b) for b in ("reference", "chunked"))
    for statistic in MIXER_STATISTICS:
        a, b = getattr(got, statistic), getattr(want, statistic)
        assert_close(a, b, **exact, msg=lambda text, s=statistic: f"{s}: {text}")


@each_mixer
def test_influence_is_that_of_running_without_each_write(name):
    m = MIXERS[name](70)
    want, got = (mixers.mix_influence(m, backend=b) for b in ("reference", "chunked"))
    assert_close(got.effect_of_key, want.effect_of_key, atol=1e-11, rtol=1e-11)
    assert_close(got.effect_on_query, want.effect_on_query, atol=1e-11, rtol=1e-11)


@each_mixer
def test_gradients_through_time_are_those_of_the_recurrence(name):
    m = MIXERS[name](21)
    names = [
        n for n in ("q", "k", "v", "log_decay", "beta", "own", "state") if getattr(m, n) is not None
    ]
    leaves = {n: getattr(m, n).detach().clone().requires_grad_() for n in names}
    weight = double(*m.v.shape)
    grads = []
    for run in (lambda m: mixers.mix(m, backend="reference").out, lambda m: chunked.run(m, 8)[0]):
        loss = (run(replace(m, **leaves)) * weight).sum()
        grads.append(torch.autograd.grad(loss, list(leaves.values())))
    assert_close(grads[1], grads[0], atol=1e-10, rtol=1e-10)


@each_mixer
def test_float32_is_within_one_part_in_a_hundred_thousand_of_float64(name):
    m = MIXERS[name](300)
    low = {n: x.float() for n, x in vars(m).items() if torch.is_tensor(x) and x.is_floating_point()}
    want, got = mixers.mix(m), mixers.mix(replace(m, **low))
    for exact_one, rounded in zip(want, got, strict=True):
        assert (rounded - exact_one).abs().max() < 1e-5 * exact_one.abs().max()
    want, got = mixers.mix_survey(m), mixers.mix_survey(replace(m, **low))
    for statistic in MIXER_STATISTICS:
        a, b = getattr(got, statistic), getattr(want, statistic)
        assert_close(
            a.double(), b, atol=1e-5, rtol=1e-4, msg=lambda text, s=statistic: f"{s}: {text}"
        )


def test_no_tensor_grows_faster_than_the_number_of_tokens():
    largest = []
    for n in (512, 1024):
        m, sizes = MIXERS["Mamba-2"](n), []

        class Sizes(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None, sizes=sizes):
                out = func(*args, **(kwargs or {}))
                sizes.extend(x.numel() for x in tree_leaves(out) if torch.is_tensor(x))
                return out

        with Sizes():
            mixers.mix(m)
            mixers.mix_window(m, slice(n - 9, n), slice(9))
            mixers.mix_window(m, slice(n), slice(9))
            mixers.mix_survey(m)
            mixers.mix_influence(m)
        largest.append(max(sizes))
    assert largest[1] <= 2 * largest[0]


def test_a_layer_that_forgets_leaves_out_only_what_is_negligible():
    m = MIXERS["gated delta"](400)
    m = replace(m, log_decay=m.decays[..., 0] - 1)
    want, got = (mixers.mix_survey(m, backend=b) for b in ("reference", "chunked"))
    assert_close(got.received, want.received, **exact)
    assert_close(got.reach, want.reach, **exact)


def test_writes_before_a_stretch_without_any_are_counted():
    m = MIXERS["delta"](200).without_writes(range(64, 140))
    want, got = (mixers.mix_survey(m, backend=b) for b in ("reference", "chunked"))
    assert_close((got.mass, got.received), (want.mass, want.received), **exact)


@pytest.mark.parametrize("name", ["gated delta", "KDA", "RG-LRU", "RWKV"])
def test_a_decay_of_zero_clears_the_state(name):
    m = MIXERS[name](90)
    decay = m.decays.clone() if m.decays.shape[-1] > 1 else m.decays[..., 0].clone()
    decay[:, :, [3, 70]] = -torch.inf
    m = replace(m, log_decay=decay)
    want, got = (mixers.mix(m, backend=b) for b in ("reference", "chunked"))
    assert_close(tuple(got), tuple(want), **exact)
    want, got = (mixers.mix_survey(m, backend=b) for b in ("reference", "chunked"))
    assert_close((got.mass, got.received), (want.mass, want.received), **exact)


@pytest.mark.usefixtures("users_view")
def test_a_state_that_grows_is_refused():
    m = MIXERS["gated delta"](3)
    with pytest.raises(ShapeError, match="log_decay: needs 0 or less"):
        mixers.mix(replace(m, log_decay=m.decays[..., 0].abs()))


def test_no_tokens_give_no_outputs():
    m = MIXERS["retention"](0)
    out, state = mixers.mix(m)
    assert out.shape == m.v.shape
    assert_close(state, m.state)
    assert mixers.mix_survey(m).mass.shape == (2, 3, 0)
