"""Numbers worked by hand, in float64, to 1e-9: regression tests.

Rows are tokens, and scores have one row per query, unless a test states otherwise.
"""

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from regard.models import VisionConfig
from regard.nn import FeedForward, MultiHeadAttention, Recurrent
from regard.ops import (
    Causal,
    Local,
    Toeplitz,
    attend,
    attention_weights,
    dot,
    patchify,
    score_moments,
    sinusoidal,
    softargmax,
)

INF = torch.inf


def exact(rows: object) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def same(got: Tensor, want: object, digits: float = 1e-9) -> None:
    """Equal to 1e-9, or to what was printed when fewer digits were."""
    want = want if isinstance(want, Tensor) else exact(want)
    assert_close(got, want, atol=digits, rtol=0)


# FX1: three tokens of four features, one head of two


@pytest.fixture
def head() -> dict[str, Tensor]:
    x = exact([[1, -1, 0, 2], [0, -1, 2, 1], [-2, 2, -1, 0]])
    w_q = exact([[0, 1], [1, 0], [-1 / 2, 0], [1, 1]])
    w_k = exact([[1, -1 / 2], [0, 1], [1 / 2, -1 / 2], [1, 1 / 2]])
    w_v = exact([[1, 1 / 2], [-1 / 2, 0], [-1, 2], [1 / 2, -1]])
    return {"x": x, "q": x @ w_q, "k": x @ w_k, "v": x @ w_v}


def test_fx1_queries_keys_and_values(head):
    same(head["q"], [[1, 3], [-1, 1], [5 / 2, -2]])
    same(head["k"], [[3, -1 / 2], [2, -3 / 2], [-5 / 2, 7 / 2]])
    same(head["v"], [[5 / 2, -3 / 2], [-1, 3], [-2, -3]])


def test_fx1_the_weights_are_unique_because_the_tokens_have_rank_3_and_this_null_vector(head):
    assert torch.linalg.matrix_rank(head["x"]) == 3
    same(head["x"] @ exact([7, 9, 4, 1]), [0, 0, 0])


def test_fx1_scores(head):
    scores = dot(head["q"], head["k"])
    same(scores, [[3 / 2, -5 / 2, 8], [-7 / 2, -7 / 2, 6], [17 / 2, 8, -53 / 4]])
    same(scores.sum(-1), [7, -1, 13 / 4])  # so a row of scores is not yet a row of weights


def test_fx1_weights_unscaled(head):
    weights = attention_weights(head["q"], head["k"], scale=1.0)
    e = math.exp
    shares = exact([[e(-13 / 2), e(-21 / 2), 1], [1, 1, e(19 / 2)], [1, e(-1 / 2), e(-87 / 4)]])
    same(weights, shares / shares.sum(-1, keepdim=True), 1e-15)
    same(weights[0], [0.00150114098270, 0.0000274943561602, 0.998471364661])
    same(weights[1], [0.0000748406259721, 0.0000748406259721, 0.999850318748])
    same(weights[2], [0.622459331063, 0.377540668714, 2.22949242072e-10])


@pytest.mark.parametrize("backend", ["reference", "tiled", "fused", "auto"])
def test_fx1_output_unscaled(head, backend):
    out, _ = attend(head["q"], head["k"], head["v"], scale=1.0, backend=backend)
    same(out[0], [-1.99321737122, -2.99758332239])
    same(out[1], [-1.99958837656, -2.99943869531])
    same(out[2], [1.17860765850, 0.198933008878])


@pytest.mark.parametrize("backend", ["reference", "tiled", "fused", "auto"])
def test_fx1_scaled_by_the_root_of_two(head, backend):
    weights = attention_weights(head["q"], head["k"])
    same(weights[0], [0.00998347620691, 0.000590080814493, 0.989426442979])
    same(weights[1], [0.00120662197260, 0.00120662197260, 0.997586756055])
    same(weights[2], [0.587478928609, 0.412520948441, 1.22950083320e-7])
    out, _ = attend(head["q"], head["k"], head["v"], backend=backend)
    same(out[0], [-1.95448427625, -2.98148430080])
    same(out[1], [-1.99336357915, -2.99095033521])
    same(out[2], [1.05617612718, 0.356344083559])


@pytest.mark.parametrize("backend", ["reference", "tiled", "fused", "auto"])
def test_fx1_causal(head, backend):
    weights = attention_weights(head["q"], head["k"], scale=1.0, mask=Causal())
    same(weights[:2], [[1, 0, 0], [1 / 2, 1 / 2, 0]], 1e-15)
    assert weights[1, 0] == weights[1, 1]  # an exact tie
    assert (weights.triu(1) == 0).all()
    same(weights[2], [0.622459331063, 0.377540668714, 2.22949242072e-10])
    out, _ = attend(head["q"], head["k"], head["v"], scale=1.0, mask=Causal(), backend=backend)
    same(out, [[5 / 2, -3 / 2], [3 / 4, 3 / 4], [1.17860765850, 0.198933008878]])


def test_fx1_tokens_as_columns_give_the_transpose(head):
    q, k, v = head["q"].mT, head["k"].mT, head["v"].mT
    a = softargmax((k.mT @ q).mT).mT  # weights of a query go down a column
    same(a, attention_weights(head["q"], head["k"], scale=1.0).mT, 1e-15)
    same(v @ a, attend(head["q"], head["k"], head["v"], scale=1.0)[0].mT)


# FX2 to FX7: small attention and positions


def test_fx2_self_attention_without_weights():
    x = exact([[1, 0], [1, 1], [0, 2]])
    same(dot(x, x)[0], [1, 1, 0])
    weights, (out, _) = attention_weights(x, x, scale=1.0), attend(x, x, x, scale=1.0)
    e = math.e
    same(weights[0], exact([e, e, 1]) / (2 * e + 1))
    same(weights[0], [0.4223188, 0.4223188, 0.1553624], 5e-8)
    same(out[0], exact([2 * e, e + 2]) / (2 * e + 1))
    same(out[0], [0.8446376, 0.7330436], 5e-8)


def test_fx3_limits_of_sharpness_share_ties():
    scores = exact([1, 2, 2, 0])
    same(softargmax(scores, beta=0), [1 / 4] * 4, 0)
    same(softargmax(scores, beta=INF), [0, 1 / 2, 1 / 2, 0], 0)
    same(softargmax(scores, beta=1000.0), [0, 1 / 2, 1 / 2, 0])


@pytest.mark.parametrize(("query", "weight"), [(1.0, 0.7310586), (-1.0, 0.2689414)])
def test_fx4_scaling_a_key_raises_its_weight_only_where_query_and_key_agree(query, weight):
    q, k = exact([[query]]), exact([[1], [1]])
    same(attention_weights(q, k), [[1 / 2, 1 / 2]])
    longer = attention_weights(q, k * exact([[2], [1]]))
    same(longer[0, 0], 1 / (1 + math.exp(-query)))
    same(longer[0, 0], weight, 5e-8)


@pytest.mark.parametrize(
    ("n", "beta", "diagonal"), [(4, 0.5, 0.3547), (4, 1.0, 0.4754), (2, 2**-0.5, 0.6698)]
)
def test_fx5_orthonormal_keys_are_not_yet_the_identity(n, beta, diagonal):
    x = torch.eye(n, dtype=torch.float64)
    seen = attention_weights(x, x, scale=beta).diagonal()
    same(seen, [math.exp(beta) / (math.exp(beta) + n - 1)] * n)
    same(seen, [diagonal] * n, 5e-5)


def test_fx6_a_relative_bias_is_a_convolution_away_from_the_edges():
    x = torch.zeros(6, 1, dtype=torch.float64)
    kernel = exact([[1 / 4, 1 / 2, 1 / 4]])
    weights = attention_weights(x[None], x[None], bias=Toeplitz(kernel.log()), mask=Local(1))[0]
    for i in range(1, 5):
        same(weights[i, i - 1 : i + 2], [1 / 4, 1 / 2, 1 / 4])
    same(weights[0, :2], [2 / 3, 1 / 3])
    same(weights[-1, -2:], [1 / 3, 2 / 3])


def test_fx6_a_band_of_thirds_is_no_softmax_at_the_ends():
    band = Local(1).dense(5, 5).double() / 3
    same(band.sum(-1), [2 / 3, 1, 1, 1, 2 / 3])


def test_fx7_sinusoidal_encodings_of_the_first_four_positions():
    codes = sinusoidal(torch.arange(4), 4)
    angles = [[p, p / 100] for p in range(4)]
    same(codes, [[f(a) for a in row for f in (math.sin, math.cos)] for row in angles])
    same(
        codes,
        [
            [0, 1, 0, 1],
            [0.841471, 0.540302, 0.010000, 0.999950],
            [0.909297, -0.416147, 0.019999, 0.999800],
            [0.141120, -0.989992, 0.029996, 0.999550],
        ],
        5e-7,
    )


# FX8 and FX9: sizes


def test_fx8_weights_of_eight_heads_and_their_feed_forward():
    layer = MultiHeadAttention(512, 8)
    assert layer.to_q.weight.shape[0] // 8 == 64
    weights = [layer.to_q.weight, layer.to_k.weight, layer.to_v.weight]
    assert sum(w.numel() for w in weights) == 786_432
    assert layer.to_out.weight.numel() == 262_144
    assert sum(p.numel() for p in FeedForward(512, 2048).parameters()) == 2_099_712


@pytest.mark.parametrize(("size", "tokens"), [(224, 196), (384, 576)])
def test_fx9_patches_of_an_image_plus_the_class_token(size, tokens):
    patches = patchify(torch.zeros(1, 3, size, size), 16)
    assert patches.shape == (1, tokens, 768)
    config = VisionConfig(classes=10, image_size=size, patch_size=16, layers=1, dim=8, heads=2)
    assert config.tokens == tokens + 1


# FX12 and FX13: moments and cost


def test_fx12_moments_of_a_score():
    mean = torch.full((64,), (13.283 / 64) ** 0.5, dtype=torch.float64)
    same(torch.stack(score_moments(mean, 1.0)), [13.283, 90.566])
    same(torch.stack(score_moments(0 * mean, 0.5)), [0, 4])


def test_fx13_multiply_adds_of_attention_as_counted_while_it_runs():
    n = d = 512
    x, w = torch.zeros(1, n, d), torch.zeros(4, d, d)
    with FlopCounterMode(display=False) as counter:
        out, _ = attend(x @ w[0], x @ w[1], x @ w[2], backend="reference")
        out @ w[3]
    assert counter.get_total_flops() // 2 == 4 * n * d**2 + 2 * n**2 * d == 805_306_368


@pytest.mark.parametrize(
    ("kind", "count"), [("rnn", 268_435_456), ("gru", 805_306_368), ("lstm", 1_073_741_824)]
)
def test_fx13_multiply_adds_of_recurrence_as_counted_while_it_runs(kind, count):
    n = d = 512
    layer = Recurrent(d, d, kind=kind, bias=False)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        layer(torch.zeros(1, n, d), backend="reference")
    gates = {"rnn": 1, "gru": 3, "lstm": 4}[kind]
    assert counter.get_total_flops() // 2 == 2 * gates * n * d**2 == count


# FX14


def test_fx14_the_causal_mask_in_both_layouts():
    rows = torch.zeros(3, 3).masked_fill(~Causal().dense(3, 3), -INF)
    assert rows.tolist() == [[0, -INF, -INF], [0, 0, -INF], [0, 0, 0]]
    assert rows.mT.tolist() == [[0, 0, 0], [-INF, 0, 0], [-INF, -INF, 0]]
