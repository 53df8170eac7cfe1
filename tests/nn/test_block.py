"""Blocks and stacks: residuals, norms, parity with torch's Transformer layers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from regard.errors import ConfigError, ShapeError
from regard.nn import (
    ALiBiBias,
    BucketBias,
    Decoder,
    DecoderBlock,
    Encoder,
    EncoderBlock,
    FeedForward,
    Norm,
    RelativeKeyBias,
    Residual,
    ToeplitzBias,
    from_torch,
)
from regard.ops import Causal, Padding, attention_weights, biases

small = st.integers(1, 4)


def test_feed_forward_512_2048_has_2099712_numbers():
    assert sum(p.numel() for p in FeedForward(512, 2048).parameters()) == 2099712


def test_gated_feed_forward_by_hand():
    layer = FeedForward(1, 1, gated=True, bias=False)
    with torch.no_grad():
        for to, w in ((layer.to_hidden, 2.0), (layer.to_gate, 3.0), (layer.to_out, 5.0)):
            to.weight.fill_(w)
        assert layer(torch.tensor([1.0])).tolist() == [30.0]  # relu(3) · 2 · 5
        assert layer(torch.tensor([-1.0])).tolist() == [0.0]


def test_feed_forward_acts_on_each_position_separately():
    layer, x = FeedForward(8), torch.randn(1, 4, 8)
    y = layer(x)
    x[:, 2] += 1.0
    changed = (layer(x) != y).any(-1)[0]
    assert changed.tolist() == [False, False, True, False]


def test_norm_gives_zero_mean_and_unit_variance_before_gain_and_bias():
    layer, x = Norm(64, eps=1e-12).double(), torch.randn(3, 64).double()
    y = layer(x)
    assert_close(y.mean(-1), torch.zeros(3).double(), atol=1e-12, rtol=0)
    assert_close(y.var(-1, correction=0), torch.ones(3).double())
    assert_close(layer(10 * x), y)  # the size of a token does not matter


def test_a_skip_is_the_identity_only_with_the_norm_first():
    x = torch.randn(2, 8)
    nothing = torch.zeros_like(x)
    assert torch.equal(Residual(8, norm_first=True)(x, nothing), x)
    assert_close(Residual(8)(x, nothing), torch.nn.functional.layer_norm(x, (8,)))
    assert torch.equal(Residual(8, norm="none", skip=False)(x, nothing), nothing)


def test_the_gradient_through_a_residual_is_one_plus_that_of_the_sublayer():
    w = torch.randn(4, 4).double()
    block = Residual(4, norm="none").double()
    x = torch.randn(4).double()
    jacobian = torch.func.jacrev(lambda x: block(x, w @ x))(x)
    assert_close(jacobian, torch.eye(4).double() + w)


def test_residuals_without_a_norm_explode_and_plain_layers_vanish():
    def gradient(**options):
        torch.manual_seed(0)
        x = torch.randn(1, 4, 16, requires_grad=True)
        (Encoder(24, 16, 2, **options)(x) * torch.randn(16)).sum().backward()
        return x.grad.norm()

    plain, residual = gradient(norm="none", skip=False), gradient(norm="none")
    assert plain < 1e-6
    assert residual > 1e4
    assert 1e-3 < gradient(norm_first=True, final_norm=True) < 1e4


@given(small, small, st.sampled_from(["relu", "gelu"]), st.booleans(), st.booleans())
def test_encoder_block_matches_torch_with_gradients(batch, time, activation, norm_first, bias):
    theirs = torch.nn.TransformerEncoderLayer(
        8, 2, 12, 0.0, activation, batch_first=True, norm_first=norm_first, bias=bias
    )
    ours = from_torch(theirs)
    x = torch.randn(batch, time, 8, requires_grad=True)
    lengths = torch.randint(1, time + 1, (batch,))
    hidden = torch.arange(time) >= lengths[:, None]
    agree(
        ours(x, mask=Padding(lengths)),
        theirs(x, src_key_padding_mask=hidden),
        [x, ours.feed_forward.to_hidden.weight, ours.feed_forward_residual.norm.gain],
        [x, theirs.linear1.weight, theirs.norm2.weight],
    )


@given(small, small, small, st.sampled_from(["relu", "gelu"]), st.booleans())
def test_decoder_block_matches_torch_with_gradients(batch, time, keys, activation, norm_first):
    theirs = torch.nn.TransformerDecoderLayer(
        8, 2, 12, 0.0, activation, batch_first=True, norm_first=norm_first
    )
    ours = from_torch(theirs)
    x = torch.randn(batch, time, 8, requires_grad=True)
    memory = torch.randn(batch, keys, 8, requires_grad=True)
    ahead = torch.ones(time, time, dtype=torch.bool).triu(1)
    lengths = torch.randint(1, keys + 1, (batch,))
    hidden = torch.arange(keys) >= lengths[:, None]
    agree(
        ours(x, memory, mask=Causal(), memory_mask=Padding(lengths)),
        theirs(x, memory, tgt_mask=ahead, memory_key_padding_mask=hidden),
        [x, memory, ours.cross_attention.to_v.weight],
        [x, memory, theirs.multihead_attn.in_proj_weight],
        rows=slice(-8, None),
    )


def agree(got, want, ours, theirs, rows=slice(None)):
    """The same outputs, and the same gradients (the last `rows` of the last one)."""
    assert_close(got, want, atol=1e-5, rtol=1e-5)
    dy = torch.randn_like(want)
    wanted = list(torch.autograd.grad(want, theirs, dy))
    wanted[-1] = wanted[-1][rows]
    for g, w in zip(torch.autograd.grad(got, ours, dy), wanted, strict=True):
        assert_close(g, w, atol=1e-5, rtol=1e-4)


@settings(max_examples=10)
@given(small, small, st.booleans())
def test_stacks_keep_order_out_and_the_future_out(batch, time, norm_first):
    stack = Encoder(2, 8, 2, norm_first=norm_first, final_norm=norm_first)
    x, order = torch.randn(batch, time, 8), torch.randperm(time)
    assert_close(stack(x[:, order]), stack(x)[:, order], atol=1e-5, rtol=1e-5)
    causal = stack(x, mask=Causal())
    assert_close(stack(x[:, :1], mask=Causal()), causal[:, :1], atol=1e-5, rtol=1e-5)


def test_incremental_decoding_matches_teacher_forcing():
    decoder, memory = (
        Decoder(2, 8, 2, relative=BucketBias(2, bidirectional=False)),
        torch.randn(1, 3, 8),
    )
    torch.nn.init.normal_(decoder.relative.table)
    x, kept = torch.randn(1, 5, 8), {}

    def cache(site, k, v):
        old = kept.get(site, (k[..., :0, :], v[..., :0, :]))
        kept[site] = torch.cat([old[0], k], -2), torch.cat([old[1], v], -2)
        return kept[site]

    read = decoder.project_memory(memory)
    steps = [decoder(x[:, t : t + 1], read, mask=Causal(), offset=t, cache=cache) for t in range(5)]
    assert len(kept) == 2  # self-attention alone is cached
    assert_close(torch.cat(steps, 1), decoder(x, memory, mask=Causal()), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "relative",
    [ALiBiBias(2), BucketBias(2), ToeplitzBias(2, radius=2), RelativeKeyBias(4, radius=2)],
    ids=lambda layer: type(layer).__name__,
)
def test_a_relative_bias_depends_on_distance_and_gets_gradients(relative):
    for table in relative.parameters():
        torch.nn.init.normal_(table)
    q = torch.randn(1, 2, 1, 4).expand(1, 2, 6, 4)
    w = attention_weights(q, torch.zeros(1, 2, 6, 4), bias=relative())
    ratio = w[..., 1:] / w[..., :-1]  # the row's sum cancels; what is left depends on j - i alone
    assert_close(ratio[..., 1:, 1:], ratio[..., :-1, :-1])
    stack = Encoder(1, 8, 2, relative=relative)
    stack(torch.randn(1, 6, 8)).pow(3).sum().backward()
    assert all(table.grad.abs().sum() > 0 for table in relative.parameters())


def test_a_bias_comes_on_top_of_the_relative_one():
    stack, x = Encoder(1, 8, 2, relative=ALiBiBias(2)), torch.randn(1, 3, 8)
    extra = torch.randn(3, 3)
    plain = Encoder(1, 8, 2)
    plain.load_state_dict(stack.state_dict())
    want = plain(x, bias=ALiBiBias(2)() + biases.DenseBias(extra))
    assert_close(stack(x, bias=biases.DenseBias(extra)), want)


def test_nothing_in_nothing_out_of_a_stack():
    assert Encoder(2, 8, 2)(torch.zeros(1, 0, 8)).shape == (1, 0, 8)
    assert DecoderBlock(8, 2)(torch.zeros(1, 0, 8), torch.zeros(1, 3, 8)).shape == (1, 0, 8)


def test_options_that_do_not_exist(users_view):
    with pytest.raises(ConfigError, match="activation: needs one of relu, .* got 'swish'"):
        EncoderBlock(8, 2, activation="swish")
    with pytest.raises(ConfigError, match="norm: needs layer, rms or none, got 'batch'"):
        EncoderBlock(8, 2, norm="batch")
    with pytest.raises(TypeError, match="head_count"):
        EncoderBlock(8, 2, head_count=3)


def test_memory_for_another_number_of_layers(users_view):
    decoder = Decoder(2, 8, 2)
    read = decoder.project_memory(torch.zeros(1, 3, 8))
    with pytest.raises(ShapeError, match="memory: needs keys and values for 2 layers, got 1"):
        decoder(torch.zeros(1, 2, 8), read[:1])
    with pytest.raises(ShapeError, match="bias: needs a Bias beside relative"):
        Encoder(1, 8, 2, relative=ALiBiBias(2))(torch.zeros(1, 2, 8), bias=torch.zeros(2, 2))
