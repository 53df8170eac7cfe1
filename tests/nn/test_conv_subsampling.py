"""Subsampling by convolution: causal, blind to padding, and the stem of Whisper."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from regard.errors import ShapeError
from regard.nn import ConvSubsampling, GlobalCMVN, TimeFrequencyConv

few, filters = st.integers(1, 3), st.sampled_from([None, 2])
strides = st.lists(few, min_size=1, max_size=3)


def test_lengths_by_hand():
    layer = ConvSubsampling(1, 1)
    assert layer.factor == 4
    assert layer.out_lengths(torch.tensor([1, 4, 5, 8, 9, 100])).tolist() == [1, 1, 2, 2, 3, 25]


@given(strides=strides, time=st.integers(1, 20), causal=st.booleans(), filters=filters)
def test_the_number_of_outputs_is_out_lengths(strides, time, causal, filters):
    layer = ConvSubsampling(2, 3, strides=strides, causal=causal, filters=filters)
    assert layer(torch.randn(1, time, 2)).shape[1] == layer.out_lengths(torch.tensor(time))


@given(strides=strides, time=st.integers(1, 20), data=st.data(), filters=filters)
def test_output_t_needs_no_frame_after_factor_times_t(strides, time, data, filters):
    layer = ConvSubsampling(2, 3, strides=strides, filters=filters)
    x = torch.randn(1, time, 2)
    now = data.draw(st.integers(0, int(layer.out_lengths(torch.tensor(time))) - 1))
    before = layer(x)
    x[:, layer.factor * now + 1 :] = 7.0
    assert torch.equal(layer(x)[:, : now + 1], before[:, : now + 1])


def test_without_causal_the_future_does_reach_back():
    layer, x = ConvSubsampling(2, 3, causal=False), torch.randn(1, 9, 2)
    before = layer(x)
    x[:, 5:] = 7.0
    assert not torch.equal(layer(x)[:, 1], before[:, 1])


@given(
    strides=strides, length=st.integers(1, 9), more=st.integers(0, 9), causal=st.booleans(),
    filters=filters,
)  # fmt: skip
def test_padding_changes_nothing(strides, length, more, causal, filters):
    layer = ConvSubsampling(2, 3, strides=strides, causal=causal, filters=filters)
    x = torch.randn(1, length + more, 2)
    alone = layer(x[:, :length])
    x[:, length:] = torch.nan
    padded = layer(x, torch.tensor([length]))
    assert_close(padded[:, : alone.shape[1]], alone)


def test_a_filter_over_bands_by_hand():
    layer = TimeFrequencyConv(1, 1, 6)
    with torch.no_grad():
        layer.filters.weight.zero_()[0, 0, 4, 1] = 1.0  # the band two above, a frame later
        layer.filters.bias.fill_(0.5)
    x = torch.arange(18.0).view(1, 6, 3)  # band 0 is 0, 1, 2 along time
    assert layer(x).tolist() == [[[7.5], [13.5], [0.5]]]  # above the last band there is nothing


@given(shift=st.integers(1, 3), wide=few)
def test_what_is_two_bands_higher_is_one_output_higher(shift, wide):
    layer, x = TimeFrequencyConv(1, wide, 24), torch.zeros(1, 24, 5)
    x[:, 8:14] = torch.randn(6, 5)
    low = layer(x).unflatten(1, (wide, 12))
    high = layer(x.roll(2 * shift, 1)).unflatten(1, (wide, 12))
    assert_close(high[:, :, shift:], low[:, :, :-shift])


def test_a_constant_feature_stays_finite():
    layer = GlobalCMVN(2)
    layer.fit(torch.tensor([[[1.0, 5.0], [3.0, 5.0]]]), torch.tensor([2]))
    assert layer(torch.tensor([[[1.0, 5.0]]])).tolist() == [[[-1.0, 0.0]]]
    assert set(layer.state_dict()) == {"mean", "std"}


def test_errors_name_the_numbers(users_view):
    with pytest.raises(ShapeError, match="x: needs 1 frame or more, got 0"):
        ConvSubsampling(2, 3)(torch.zeros(1, 0, 2))
    with pytest.raises(ShapeError, match=r"strides: needs .* got \(2, 0\)"):
        ConvSubsampling(2, 3, strides=(2, 0))
    with pytest.raises(ShapeError, match=r"lengths: needs 1 frame or more in all, got \[0\]"):
        GlobalCMVN(2).fit(torch.zeros(1, 3, 2), torch.tensor([0]))
