"""Influence where one key of a row holds nearly all of its weight, as attention sinks do.

The truth is brute force: each key really removed and the softmax taken again, in float64, from the
same (rounded) q, k and v.
"""

import math

import pytest
import torch
from torch.testing import assert_close

from regard import ops
from regard.ops import attend, influence, influence_window, masks, tiling

LEFT = [0.3, 1e-2, 1e-4, 1e-6, 1e-12, 1e-60]  # 1 - w of one key per row


def softmax_without(scores, sinks, key=None):
    """Weights in float64 once `key` is gone; sinks are one more score, without a value."""
    if key is not None:
        scores = scores.clone()
        scores[..., key] = -torch.inf
    if sinks is not None:
        column = sinks.double()[:, None, None].expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, column], -1)
    top = scores.amax(-1, keepdim=True)
    p = torch.exp(scores - top.masked_fill(top == -torch.inf, 0))
    w = p / p.sum(-1, keepdim=True).clamp(min=1e-300)
    return w if sinks is None else w[..., :-1]


def scores_of(q, k, allowed=None, bias=None, softcap=None, scale=None):
    s = q.double() @ k.double().repeat_interleave(q.shape[-3] // k.shape[-3], -3).mT
    s = s * (q.shape[-1] ** -0.5 if scale is None else scale)
    s = s if softcap is None else softcap * torch.tanh(s / softcap)
    s = s if bias is None else s + bias.double()
    return s if allowed is None else s.masked_fill(~allowed, -torch.inf)


def really_removed(scores, v, sinks=None):
    """|output without key j - output| for every pair, and the weights there were."""
    v = v.double().repeat_interleave(scores.shape[-3] // v.shape[-3], -3)
    w = softmax_without(scores, sinks)
    changes = [softmax_without(scores, sinks, j) @ v - w @ v for j in range(scores.shape[-1])]
    return torch.stack([c.norm(dim=-1) for c in changes], -1), w


def draw(dtype, queries=12, keys=11, head_dim=8, value=6):
    q = torch.randn(2, 4, queries, head_dim)
    k, v = torch.randn(2, 2, keys, head_dim), torch.randn(2, 2, keys, value)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def bias_for(scores, left, sinks=None):
    """A bias that gives one key per row the weight 1 - left, less rounding."""
    key = torch.randint(scores.shape[-1], scores.shape[:-1])
    gone = scores.scatter(-1, key[..., None], -torch.inf)
    if sinks is not None:
        gone = torch.cat([gone, sinks.double()[:, None, None].expand_as(gone[..., :1])], -1)
    want = gone.logsumexp(-1) + math.log1p(-left) - math.log(left)
    own = scores.gather(-1, key[..., None])[..., 0]
    bias = torch.zeros_like(scores).scatter(-1, key[..., None], (want - own)[..., None])
    return bias.float()


def worst(got, want):
    return float(((got.double() - want).abs() / want.clamp(min=1e-30)).max())


def check(found, want):
    """Row sums, column sums and largest effects, each on its own within one in a thousand."""
    assert worst(found.effect_on_query, want.sum(-1)) < 1e-3
    assert worst(found.effect_of_key, want.sum(-2)) < 1e-3
    assert worst(found.strongest, want.amax(-1)) < 1e-3
    at = want.gather(-1, found.strongest_key[..., None])[..., 0]
    assert_close(at, found.strongest.double(), rtol=1e-3, atol=0)


@pytest.mark.parametrize("backend", ["reference", "tiled"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("left", LEFT)
def test_every_effect_is_that_of_really_removing_the_key(left, dtype, backend, monkeypatch):
    monkeypatch.setattr(tiling, "CPU_TILE", tiling.TileSize(64, 5, 4))
    q, k, v = draw(dtype)
    bias = bias_for(scores_of(q, k), left)
    want, w = really_removed(scores_of(q, k, bias=bias), v)
    assert_close(w.amax(-1), torch.full_like(w[..., 0], 1 - left), rtol=1e-5, atol=0)
    out, lse = attend(q, k, v, bias=bias)
    e = influence_window(q, k, v, out, lse, bias=bias)
    at = w.argmax(-1, keepdim=True)
    assert worst(e.gather(-1, at), want.gather(-1, at)) < 1e-3
    assert_close(e.double(), want, rtol=1e-3, atol=1e-6)
    check(influence(q, k, v, out, lse, bias=bias, backend=backend), want)


@pytest.mark.parametrize("left", [0.3, 0.15, 0.02])
def test_a_key_of_more_than_half_is_as_exact_as_float32(left):
    """By 1 - w and h - v of a rounded lse and out the error would be from 4e-6 to 1e-4."""
    q, k, v = draw(torch.float32)
    q = 4 * q
    bias = bias_for(scores_of(q, k), left)
    want, w = really_removed(scores_of(q, k, bias=bias), v)
    e = influence_window(q, k, v, *attend(q, k, v, bias=bias), bias=bias)
    at = w.argmax(-1, keepdim=True)
    assert worst(e.gather(-1, at), want.gather(-1, at)) < 2.5e-6


INTERPRETED = [  # the interpreter multiplies bfloat16 wrongly
    ("cpu", torch.float32, 8, 12, 1e-6),
    ("cpu", torch.float16, 8, 12, 1e-6),
    ("cpu", torch.float32, 8, 12, 1e-60),
]
ON_CUDA = [
    pytest.param("cuda", *sizes, left, marks=[pytest.mark.gpu])
    for sizes in (
        (torch.bfloat16, 64, 64),
        (torch.bfloat16, 128, 128),
        (torch.bfloat16, 80, 256),
        (torch.float32, 64, 64),
    )
    for left in (0.3, 1e-3, 1e-6, 1e-12, 1e-60)
]


@pytest.mark.parametrize(("device", "dtype", "head_dim", "value", "left"), INTERPRETED + ON_CUDA)
def test_the_kernel_holds_to_it_too(device, dtype, head_dim, value, left):
    pytest.importorskip("regard.ops.influence.kernel")
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    if device == "cpu" and torch.cuda.is_available():
        pytest.skip("the kernel runs for real here")
    sizes = (20, 40) if device == "cpu" else (333, 300)
    q, k, v = (x[:1].to(device) for x in draw(dtype, *sizes, head_dim, value))
    q, k, v = q[:, :2], k[:, :1], v[:, :1]
    scores = scores_of(q, k)
    bias = bias_for(scores.cpu(), left).to(device)
    want, _ = really_removed(scores_of(q, k, bias=bias), v)
    out, lse = attend(q, k, v, bias=bias)
    found = influence(q, k, v, out, lse, bias=bias, backend="kernel")
    assert worst(found.effect_on_query, want.sum(-1)) < 1e-3
    assert worst(found.strongest, want.amax(-1)) < 1e-3
    big = want.sum(-2) > 1e-6  # below, the truth is itself a difference of rounded numbers
    assert worst(found.effect_of_key[big], want.sum(-2)[big]) < 1e-3
    if value > 64:  # compiling takes longer than running
        return
    slope = influence(q, k, v, out, lse, bias=bias, backend="kernel", effect="slope")
    wide, terms = [x.double() for x in (q, k, v)], {"bias": bias.double()}
    exact = influence(*wide, *attend(*wide, **terms), **terms, effect="slope", backend="tiled")
    assert_close(slope.effect_on_query.double(), exact.effect_on_query, rtol=1e-3, atol=1e-30)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_near_values_in_the_kernel_are_within_a_thousandth_of_the_output(device):
    """Keys of one value share the weight: what little the others hold is their effect."""
    pytest.importorskip("regard.ops.influence.kernel")
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    q, k, v = torch.zeros(1, 1, 20, 8), torch.zeros(1, 1, 70, 8), torch.randn(1, 1, 70, 12)
    v[..., :3, :] = v[..., :1, :]
    bias = torch.full((20, 70), -11.0)
    bias[:, :3] = 0.0
    q, k, v, bias = (x.to(device) for x in (q, k, v, bias))
    want, _ = really_removed(scores_of(q, k, bias=bias), v)
    out, lse = attend(q, k, v, bias=bias)
    found = influence(q, k, v, out, lse, bias=bias, backend="kernel")
    off = (found.effect_of_key - want.sum(-2))[..., :3].abs()
    assert off.max() < 1e-3 * float(out.norm(dim=-1).sum())


TERMS = {
    "scale": {"scale": 40.0},
    "softcap": {"scale": 60.0, "softcap": 25.0},
    "sinks": {"scale": 30.0, "sinks": torch.tensor([0.5, 60.0, -90.0, 200.0])},
    "causal": {"scale": 20.0, "mask": ops.Causal()},
    "causal, sinks": {"mask": ops.Causal(), "sinks": torch.tensor([0.5, 20.0, -90.0, 0.0])},
    "padded": {"scale": 20.0, "mask": ops.Padding(torch.tensor([1, 7]), torch.tensor([0, 3]))},
    "dense": {"scale": 20.0, "mask": masks.DenseMask(torch.rand(12, 11) > 0.7)},
    "cached": {"scale": 20.0, "mask": ops.Causal(), "offset": 3},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", TERMS)
def test_every_term_of_a_score_is_in_what_is_left(kind, dtype):
    terms = dict(TERMS[kind])
    q, k, v = draw(dtype)
    i, j = torch.arange(12)[:, None], torch.arange(11)
    allowed = torch.ones(2, 1, 12, 11, dtype=torch.bool)
    match terms.get("mask"):
        case ops.Causal():
            allowed = allowed & (j <= i + terms.get("offset", 0))
        case ops.Padding(lengths, skip):
            allowed = allowed & (j < lengths.view(2, 1, 1, 1)) & (j >= skip.view(2, 1, 1, 1))
        case masks.DenseMask(given):
            allowed = allowed & given
    given = {name: terms.get(name) for name in ("scale", "softcap")}
    want, w = really_removed(scores_of(q, k, allowed, **given), v, terms.get("sinks"))
    out, lse = attend(q, k, v, **terms)
    e = influence_window(q, k, v, out, lse, **terms)
    assert (w > 0.9).any()
    assert_close(e.double(), want, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("value", [1, 3, 256])
@pytest.mark.parametrize("keys", [1, 2, 700])
def test_any_number_of_keys_and_any_width_of_values(keys, value, dtype):
    q, k, v = (x[:1, :1] for x in draw(dtype, queries=9, keys=keys, value=value))
    k[..., 0, :] = 0
    bias = torch.zeros(9, keys)
    bias[:, 0] = torch.linspace(0, 25, 9)
    want, w = really_removed(scores_of(q, k, bias=bias), v)
    out, lse = attend(q, k, v, bias=bias)
    e = influence_window(q, k, v, out, lse, bias=bias)
    assert_close(e.double(), want, rtol=1e-3, atol=2e-6)
    assert worst(e[..., -1, 0], want[..., -1, 0]) < 1e-3


def test_a_key_that_shares_the_row_with_a_sink_alone_takes_what_it_gave():
    q, k, v = torch.ones(1, 1, 1), torch.zeros(1, 1, 1), torch.full((1, 1, 1), 8.0)
    terms = {"sinks": torch.zeros(1)}
    out, lse = attend(q, k, v, **terms)  # half of the weight each
    assert_close(influence_window(q, k, v, out, lse, **terms), torch.full((1, 1, 1), 4.0))


def test_rows_without_a_key_and_keys_at_minus_infinity_have_no_effect():
    q, k, v = torch.randn(3, 2), torch.randn(4, 2), torch.randn(4, 5)
    bias = torch.zeros(3, 4)
    bias[1] = -torch.inf
    bias[2, :3] = -torch.inf  # one key left: it takes all
    out, lse = attend(q, k, v, bias=bias)
    e = influence_window(q, k, v, out, lse, bias=bias)
    assert (e[1] == 0).all()
    assert (e[2, :3] == 0).all()
    assert_close(e[2, 3], v[3].norm())
    found = influence(q, k, v, out, lse, bias=bias)
    assert found.strongest_key[1:].tolist() == [-1, 3]


def test_two_keys_of_half_each_and_keys_of_one_value():
    q, k = torch.zeros(1, 2), torch.zeros(2, 2)
    v = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    e = influence_window(q, k, v, *attend(q, k, v))
    assert_close(e, torch.full((1, 2), 0.5**0.5))
    same = torch.full((2, 2), 1e3 / 3)
    e = influence_window(q, k, same, *attend(q, k, same))
    assert_close(e, torch.zeros(1, 2), rtol=0, atol=1e-4)


@pytest.mark.parametrize("difference", [0.0, 1e-7, 1e-6, 1e-4])
@pytest.mark.parametrize("keys", [2, 300])
def test_the_result_states_what_nearly_equal_values_lose(difference, keys):
    """Values that differ by 1e-6 have effects of the size of the output's rounding."""
    q, k = 4 * torch.randn(2, 20, 8), torch.randn(2, keys, 8)
    v = torch.randn(2, 1, 1) + difference * torch.randn(2, keys, 1)
    found = influence(q, k, v, *attend(q, k, v))
    want, _ = really_removed(scores_of(q, k), v)
    for got, exact in ((found.effect_on_query, want.sum(-1)), (found.strongest, want.amax(-1))):
        off = (got.double() - exact).abs()
        assert (off <= 1e-3 * exact + found.rounding).all()
    assert (found.rounding < 4e-6 * v.abs().amax()).all()


def test_near_values_stay_distinct():
    """Three keys of one value share the weight: what little the fourth holds is their effect."""
    v = torch.randn(4, 64)
    v[1:3] = v[0]
    q, k, bias = torch.zeros(1, 4), torch.zeros(4, 4), torch.tensor([[0.0, 0.0, 0.0, -6.0]])
    want, _ = really_removed(scores_of(q[None], k[None], bias=bias), v[None])
    e = influence_window(q, k, v, *attend(q, k, v, bias=bias), bias=bias)
    assert worst(e, want[0]) < 1e-3


@pytest.mark.parametrize("left", LEFT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_slopes_and_scaled_keys_are_right_there_too(left, dtype):
    q, k, v = draw(dtype)
    bias = bias_for(scores_of(q, k), left)
    scores = scores_of(q, k, bias=bias)
    want, w = really_removed(scores, v)
    out, lse = attend(q, k, v, bias=bias)
    # |dh / ds| = w |v - h| = w (1 - w) |v - h without|, the last being what was really measured
    rest = torch.stack([softmax_without(scores, None)[..., [*range(j), *range(j + 1, 11)]].sum(-1)
                        for j in range(11)], -1)  # fmt: skip
    e = influence_window(q, k, v, out, lse, bias=bias, effect="slope")
    at = w.argmax(-1, keepdim=True)
    assert worst(e.gather(-1, at), (rest * want).gather(-1, at)) < 1e-3 or left < 1e-30
    assert_close(e.double(), rest * want, rtol=1e-3, atol=1e-14)  # the truth's own rounding
    values, really, others = v.double().repeat_interleave(2, -3), [], []
    for j in range(11):
        longer = k.double().clone()
        longer[..., j, :] *= -20
        new = softmax_without(scores_of(q, longer, bias=bias), None)
        really.append(((new - w) @ values).norm(dim=-1))
        # w' - w by way of the others, where both may be near 1
        other = torch.arange(11) != j
        moved = (new[..., other].sum(-1) - w[..., other].sum(-1)).abs()
        others.append(moved * want[..., j] / w[..., j])
    e = influence_window(q, k, v, out, lse, bias=bias, effect="scale", alpha=-20.0)
    assert_close(e.double(), torch.stack(really, -1), rtol=1e-3, atol=1e-6)
    assert worst(e.gather(-1, at), torch.stack(others, -1).gather(-1, at)) < 1e-3 or left < 1e-30


def test_half_precision_lse_is_recomputed():
    q, k, v = draw(torch.float32)
    bias = bias_for(scores_of(q, k), 1e-4)
    want, _ = really_removed(scores_of(q, k, bias=bias), v)
    out, lse = attend(q, k, v, bias=bias)
    found = influence(q, k, v, out, lse.bfloat16(), bias=bias)
    assert worst(found.effect_on_query, want.sum(-1)) < 1e-3
