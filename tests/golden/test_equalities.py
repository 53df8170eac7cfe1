"""Equalities of the course: special cases of attention and recurrence."""

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from regard.nn import FeedForward, MultiHeadAttention, TokenEmbedding
from regard.ops import (
    Local,
    LSTMWeights,
    RNNWeights,
    Toeplitz,
    attend,
    attention_weights,
    dot,
    lstm_step,
    rnn_step,
    softargmax,
)

few = st.integers(1, 5)


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


# One attention, written in several ways


@given(few, few)
def test_self_attention_by_a_loop_is_the_matrix_form(n, d):
    x = numbers(n, d)
    out, _ = attend(x, x, x, scale=1.0)
    for i in range(n):
        share = torch.stack([torch.exp(x[i] @ x[j]) for j in range(n)])
        assert_close(out[i], (share / share.sum()) @ x)


@given(few, few, few, few)
def test_batched_queries_equal_single_queries(n, m, d, t):
    q, k, v = numbers(n, d), numbers(m, d), numbers(m, t)
    together, _ = attend(q, k, v)
    alone = torch.cat([attend(q[i : i + 1], k, v)[0] for i in range(n)])
    assert together.shape == (n, t)
    assert_close(together, alone)


@given(few, few, few)
def test_projections_by_columns_are_those_by_rows_transposed(n, d, head_dim):
    x, w = numbers(n, d), numbers(d, head_dim)
    assert_close((w.mT @ x.mT).mT, x @ w)


@settings(max_examples=10)
@given(st.sampled_from([1, 2, 4]), few, few)
def test_heads_by_columns_are_heads_by_rows_transposed(heads, n, m):
    layer = MultiHeadAttention(8, heads, qkv_bias=False).double()
    x, source = numbers(1, n, 8), numbers(1, m, 8)
    w_q, w_k, w_v, w_o = (
        p.weight for p in (layer.to_q, layer.to_k, layer.to_v, layer.to_out)
    )  # torch keeps them as columns want them: out × in
    stacked = []
    for q, k, v in zip(*(w.chunk(heads) for w in (w_q, w_k, w_v)), strict=True):
        queries, keys, values = q @ x[0].mT, k @ source[0].mT, v @ source[0].mT
        stacked.append(values @ (keys.mT @ queries / (8 / heads) ** 0.5).softmax(0))
    assert_close((w_o @ torch.cat(stacked)).mT, layer(x, source)[0])


def test_one_set_of_weights_serves_any_length():
    layer = MultiHeadAttention(8, 2)
    count = sum(p.numel() for p in layer.parameters())
    for n in (3, 7, 50):
        assert layer(torch.randn(1, n, 8)).shape == (1, n, 8)
        assert sum(p.numel() for p in layer.parameters()) == count


# Attention that is something else


@given(few, few)
def test_at_zero_sharpness_attention_is_a_fully_connected_average(n, m):
    scores, v = dot(numbers(n, 3), numbers(m, 3)), numbers(m, 2)
    average = torch.full((n, m), 1 / m, dtype=torch.float64)
    assert_close(softargmax(scores, 0) @ v, F.linear(v.mT, average).mT)


def test_identical_tokens_as_keys_become_the_identity_only_as_beta_grows():
    x = F.normalize(numbers(6, 8), dim=-1)
    error = [float((attend(x, x, x, scale=beta)[0] - x).abs().max()) for beta in (1.0, 10.0, 500.0)]
    assert error[0] > 0.1
    assert error[0] > error[1] > error[2]
    assert error[2] < 1e-12


def test_permuted_keys_make_attention_a_permutation():
    keys = torch.eye(5, dtype=torch.float64)
    order = torch.tensor([2, 0, 4, 1, 3])
    v = numbers(5, 3)
    assert_close(attend(keys[order], keys, v, scale=100.0)[0], v[order])


@given(few)
def test_a_diagonal_map_is_a_convolution_of_width_one(n):
    x, w_v = numbers(n, 3), numbers(3, 2)
    out, _ = attend(x, x, x @ w_v, mask=Local(0))
    assert_close(out, F.conv1d(x.mT, w_v.mT[..., None]).mT)


def test_a_band_from_a_bias_is_a_convolution_away_from_the_ends():
    x, taps = numbers(9, 3), torch.tensor([0.25, 0.5, 0.25], dtype=torch.float64)
    still = torch.zeros(1, 9, 1, dtype=torch.float64)
    out, _ = attend(still, still, x[None], bias=Toeplitz(taps.log()[None]), mask=Local(1))
    conv = F.conv1d(x.mT[:, None], taps.view(1, 1, 3)).squeeze(1).mT
    assert_close(out[0, 1:-1], conv)


def test_one_head_for_each_tap_is_any_convolution():
    """The bridge between heads and the filters of a CNN: head k looks k - 1 steps away."""
    x, kernel = numbers(7, 3), numbers(4, 3, 3)  # out, in, taps
    shifts = torch.full((3, 3), -torch.inf, dtype=torch.float64).fill_diagonal_(0)
    still, v = torch.zeros(3, 7, 1).double(), x.expand(3, 7, 3)
    heads, _ = attend(still, still, v, bias=Toeplitz(shifts), mask=Local(1))
    mixed = torch.einsum("hni,oih->no", heads, kernel)
    assert_close(mixed, F.conv1d(x.mT, kernel, padding=1).mT)


@given(few)
def test_feed_forward_is_the_same_map_at_each_position(n):
    layer, x = FeedForward(4).double(), numbers(n, 4)
    assert_close(layer(x), torch.stack([layer(token) for token in x]))


def test_the_same_word_has_the_same_projections_until_positions_are_added():
    tokens = torch.tensor([[1, 2, 1]])
    bare = TokenEmbedding(3, 8, positions="none").double()(tokens)
    placed = TokenEmbedding(3, 8, positions="sinusoidal").double()(tokens)
    assert torch.equal(bare[0, 0], bare[0, 2])
    assert (placed[0, 0] - placed[0, 2]).norm() > 0.5


def test_the_same_token_in_two_contexts_has_two_hidden_states():
    layer = MultiHeadAttention(8, 2).double()
    one, other = numbers(1, 4, 8), numbers(1, 4, 8)
    other[0, 0] = one[0, 0]
    assert (layer(one)[0, 0] - layer(other)[0, 0]).norm() > 0.01


def test_the_weights_of_a_query_say_nothing_of_length_or_order_of_the_keys():
    q, k, order = numbers(2, 3), numbers(5, 3), torch.randperm(5)
    assert_close(attention_weights(q, k[order]), attention_weights(q, k)[:, order])


# Gradients through time


def test_the_gradient_through_time_is_a_product_of_jacobians():
    weights, x = RNNWeights(numbers(3, 2), numbers(3, 3)), numbers(5, 2)
    start = numbers(3).requires_grad_()
    h, jacobian = start, torch.eye(3, dtype=torch.float64)
    for x_t in x:
        h = rnn_step(x_t, h, weights).h
        jacobian = torch.diag(1 - h.detach() ** 2) @ weights.u @ jacobian
    by_autograd = torch.stack(
        [torch.autograd.grad(h[i], start, retain_graph=True)[0] for i in range(3)]
    )
    assert_close(by_autograd, jacobian)


def test_the_gradient_of_an_lstms_input_weights_by_its_recursion():
    """dc_t and dh_t with respect to one block W_g, carried forward by hand, against autograd."""
    hidden, dim, time = 3, 2, 4
    w, u = numbers(4 * hidden, dim).requires_grad_(), numbers(4 * hidden, hidden)
    x, out = numbers(time, dim), numbers(hidden)
    h, c = torch.zeros(2, hidden, dtype=torch.float64)
    dh = dc = torch.zeros(hidden, w.numel(), dtype=torch.float64)
    for x_t in x:
        step = lstm_step(x_t, h, c, LSTMWeights(w, u))
        i, f, o, g = (gate.detach() for gate in (step.i, step.f, step.o, step.candidate))
        seen = torch.kron(torch.eye(4 * hidden).double(), x_t[None])  # d(W x) / dW
        di, df, do, dg = (seen + u @ dh).chunk(4)
        di, df, do = ((s * (1 - s))[:, None] * d for s, d in ((i, di), (f, df), (o, do)))
        dg = (1 - g**2)[:, None] * dg
        dc = f[:, None] * dc + c.detach()[:, None] * df + g[:, None] * di + i[:, None] * dg
        h, c = step.h, step.c
        tanh = c.detach().tanh()
        dh = tanh[:, None] * do + (o * (1 - tanh**2))[:, None] * dc
    (by_autograd,) = torch.autograd.grad(h @ out, w)
    assert_close(by_autograd.flatten(), out @ dh)
