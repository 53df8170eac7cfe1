"""Multi-head attention: parameter counts, information flow, parity with torch."""

import pytest
import torch
from einops import rearrange
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from regard.errors import ConfigError, ShapeError
from regard.nn import MultiHeadAttention, attention_state_dict, from_torch
from regard.ops import Causal, Local, Padding, attention_weights

small = st.integers(1, 5)


def count(*tensors):
    return sum(t.numel() for t in tensors)


def test_512_wide_with_8_heads_has_786432_weights_and_262144_to_mix():
    layer = MultiHeadAttention(512, 8)
    assert count(layer.to_q.weight, layer.to_k.weight, layer.to_v.weight) == 786432
    assert count(layer.to_out.weight) == 262144
    assert layer.project_query(torch.zeros(1, 1, 512)).shape == (1, 8, 1, 64)


@pytest.mark.parametrize("heads", [1, 2, 4, 8])
def test_the_count_does_not_depend_on_heads(heads):
    assert count(*MultiHeadAttention(64, heads, qkv_bias=False).parameters()) == 4 * 64**2


def test_two_tokens_by_hand():
    layer = MultiHeadAttention(2, 1, qkv_bias=False, scale=1.0)
    with torch.no_grad():
        for to in (layer.to_q, layer.to_k, layer.to_v, layer.to_out):
            to.weight.copy_(torch.eye(2))
        y = layer(torch.tensor([[[1.0, 0.0], [0.0, 2.0]]]))
    e, e4 = torch.e, torch.e**4
    want = [[e / (e + 1), 2 / (e + 1)], [1 / (1 + e4), 2 * e4 / (1 + e4)]]
    assert_close(y, torch.tensor([want]))


@given(small, small, st.sampled_from([1, 2, 4]), st.data())
def test_causal_outputs_do_not_depend_on_later_tokens(batch, time, kv_heads, data):
    layer = MultiHeadAttention(8, 4, kv_heads=kv_heads, rope_theta=10000.0)
    now = data.draw(st.integers(0, time - 1))
    x = torch.randn(batch, time, 8)
    before = layer(x, mask=Causal())
    x[:, now + 1 :] = 7.0
    assert_close(layer(x, mask=Causal())[:, : now + 1], before[:, : now + 1])


@given(small, small)
def test_without_positions_order_does_not_matter(batch, time):
    layer, x, order = MultiHeadAttention(8, 2), torch.randn(batch, time, 8), torch.randperm(time)
    assert_close(layer(x[:, order]), layer(x)[:, order])


@given(small, small, small)
def test_rotary_sees_distances_only(time, shift, base):
    layer, x = MultiHeadAttention(8, 2, rope_theta=10.0**base), torch.randn(1, time, 8)
    at = torch.arange(time)
    assert_close(layer(x, positions=at + shift), layer(x), atol=1e-5, rtol=1e-4)


@given(small, small, small)
def test_padding_changes_nothing(batch, time, extra):
    layer, x = MultiHeadAttention(8, 2), torch.randn(batch, time, 8)
    padded = torch.cat([x, torch.randn(batch, extra, 8)], 1)
    mask = Padding(torch.full((batch,), time))
    assert_close(layer(padded, mask=mask)[:, :time], layer(x))


@given(small, st.sampled_from([None, 10000.0]))
def test_step_by_step_with_a_cache_gives_the_same(time, rotary):
    layer, x = MultiHeadAttention(8, 4, kv_heads=2, rope_theta=rotary), torch.randn(1, time, 8)
    mask = Causal() & Local(2)
    kept = []

    def cache(site, k, v):
        assert site is layer
        kept.append((k, v))
        ks, vs = zip(*kept, strict=True)
        return torch.cat(ks, -2), torch.cat(vs, -2)

    steps = [layer(x[:, t : t + 1], mask=mask, offset=t, cache=cache) for t in range(time)]
    assert_close(torch.cat(steps, 1), layer(x, mask=mask))


def test_the_output_is_the_sum_of_head_contributions():
    layer, x = MultiHeadAttention(8, 4).double(), torch.randn(1, 5, 8).double()
    q, (k, v) = layer.project_query(x), layer.project_kv(x)
    mix = rearrange(layer.to_out.weight, "dim (head head_dim) -> head head_dim dim", head=4)
    per_head = attention_weights(q, k) @ v @ mix
    assert_close(per_head.sum(-3) + layer.to_out.bias, layer(x), atol=5e-15, rtol=1e-12)


def test_equal_heads_are_one_head_with_summed_mixing():
    layer = MultiHeadAttention(8, 2).double()
    one = MultiHeadAttention(8, 1, head_dim=4).double()
    with torch.no_grad():
        for ours, single in (
            (layer.to_q, one.to_q),
            (layer.to_k, one.to_k),
            (layer.to_v, one.to_v),
        ):
            ours.weight.copy_(single.weight.repeat(2, 1))
            ours.bias.copy_(single.bias.repeat(2))
        one.to_out.weight.copy_(layer.to_out.weight[:, :4] + layer.to_out.weight[:, 4:])
    x = torch.randn(1, 5, 8).double()
    assert_close(layer(x), one(x), atol=1e-14, rtol=0)


def test_one_key_head_serves_all_as_if_repeated():
    grouped, full = MultiHeadAttention(8, 4, kv_heads=2), MultiHeadAttention(8, 4)
    state = grouped.state_dict()
    for name in ("to_k.weight", "to_k.bias", "to_v.weight", "to_v.bias"):
        heads = rearrange(state[name], "(head head_dim) ... -> head head_dim ...", head=2)
        state[name] = heads.repeat_interleave(2, 0).flatten(0, 1)
    full.load_state_dict(state)
    x = torch.randn(2, 3, 8)
    assert_close(grouped(x), full(x))


def test_a_large_sink_takes_everything():
    layer, x = MultiHeadAttention(8, 2, sinks=True, qkv_bias=False), torch.randn(1, 3, 8)
    with torch.no_grad():
        layer.sinks += 100.0
    assert_close(layer(x), torch.zeros(1, 3, 8))


def test_dropout_is_for_training_only():
    layer, x = MultiHeadAttention(8, 2, dropout=0.5), torch.randn(1, 9, 8)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


def test_nothing_in_nothing_out():
    layer = MultiHeadAttention(8, 2)
    assert layer(torch.zeros(2, 0, 8)).shape == (2, 0, 8)
    nothing_read = layer(torch.zeros(1, 3, 8), torch.zeros(1, 0, 8))
    assert_close(nothing_read, layer.to_out.bias.expand(1, 3, 8))


def test_nan_stays_visible():
    x = torch.randn(1, 3, 8)
    x[0, 0, 0] = torch.nan
    assert MultiHeadAttention(8, 2)(x, mask=Causal()).isnan().all()


@given(small, small, small, st.sampled_from([1, 2, 3]), st.booleans(), st.booleans())
def test_same_as_torch_with_gradients(batch, time, keys, heads, bias, narrow):
    source_dim = 3 if narrow else None
    theirs = torch.nn.MultiheadAttention(
        6, heads, bias=bias, kdim=source_dim, vdim=source_dim, batch_first=True
    )
    ours = from_torch(theirs)
    x = torch.randn(batch, time, 6, requires_grad=True)
    s = torch.randn(batch, keys, source_dim or 6, requires_grad=True)
    lengths = torch.randint(1, keys + 1, (batch,))
    hidden = torch.arange(keys) >= lengths[:, None]
    dy = torch.randn(batch, time, 6)
    want = theirs(x, s, s, key_padding_mask=hidden)[0]
    got = ours(x, s, mask=Padding(lengths))
    assert_close(got, want, atol=1e-5, rtol=1e-5)
    wanted = torch.autograd.grad(want, [x, s, theirs.out_proj.weight], dy)
    for g, w in zip(torch.autograd.grad(got, [x, s, ours.to_out.weight], dy), wanted, strict=True):
        assert_close(g, w, atol=1e-5, rtol=1e-4)


@given(small, small)
def test_same_as_torch_when_causal(batch, time):
    theirs = torch.nn.MultiheadAttention(6, 2, batch_first=True)
    x = torch.randn(batch, time, 6)
    ahead = torch.ones(time, time, dtype=torch.bool).triu(1)
    want = theirs(x, x, x, attn_mask=ahead, need_weights=False)[0]
    assert_close(from_torch(theirs)(x, mask=Causal()), want, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"dim": 10, "heads": 4}, "dim: needs a multiple of heads=4, got 10; try"),
        ({"dim": 8, "heads": 4, "kv_heads": 3}, "kv_heads: needs a divisor of heads=4, got 3"),
        ({"dim": 8, "heads": 0}, "dim: needs a multiple of heads=0"),
    ],
)
def test_sizes_that_cannot_be(sizes, message):
    with pytest.raises(ShapeError, match=message):
        MultiHeadAttention(**sizes)


def test_columns_as_tokens_raise_with_a_hint(users_view):
    layer = MultiHeadAttention(8, 2)
    with pytest.raises(ShapeError, match=r"x: needs dim=8 .* got \(1, 8, 3\); .* try x.mT"):
        layer(torch.zeros(1, 8, 3))
    with pytest.raises(ShapeError, match=r"source: needs dim=8 as its last axis, got \(1, 3, 5\)$"):
        layer(torch.zeros(1, 3, 8), torch.zeros(1, 3, 5))


def test_unsupported_torch_options_raise():
    with pytest.raises(ConfigError, match="add_bias_kv"):
        attention_state_dict(torch.nn.MultiheadAttention(4, 2, add_bias_kv=True).state_dict())
    with pytest.raises(ConfigError, match="kdim=3, vdim=2"):
        from_torch(torch.nn.MultiheadAttention(4, 2, kdim=3, vdim=2))
