"""Closed-form effects at one site equal the intervention; noise is averaged over many draws."""

import math
import time

import pytest
import torch
from torch.testing import assert_close

import regard as rg
from regard.errors import ShapeError
from regard.ops.intercept import intercepting

CASES = {
    "plain": {},
    "causal": {"mask": rg.Causal()},
    "softcap": {"softcap": 1.5, "mask": rg.Causal()},
    "alibi": {"bias": rg.ALiBi(torch.tensor([0.5, 0.1, 1.0, 0.0], dtype=torch.float64))},
    "sinks": {"sinks": torch.tensor([0.5, 2.0, -1.0, 0.0], dtype=torch.float64)},
    "all": {
        "mask": rg.Causal() & rg.Local(4),
        "softcap": 2.0,
        "bias": rg.ALiBi(torch.tensor([0.5, 0.1, 1.0, 0.0], dtype=torch.float64)),
        "sinks": torch.tensor([0.5, 2.0, -1.0, 0.0], dtype=torch.float64),
    },
}


@pytest.fixture(params=CASES)
def terms(request) -> dict:
    return CASES[request.param]


def tensors(queries: int = 9):
    q = 2 * torch.randn(2, 4, queries, 8, dtype=torch.float64)
    return q, *torch.randn(2, 2, 2, queries, 8, dtype=torch.float64)


def really(edit, site, terms):
    with intercepting(edit):
        return rg.attend(site.q, site.k, site.v, **terms)[0] - site.out


def test_drop_key_effect_equals_masking_the_keys(terms):
    site = rg.make_site(*tensors(), **terms)
    for keys in (0, 3, [1, 4, 5]):
        got = rg.inspection.drop_key_effect(site, keys).change
        assert_close(got, really(rg.edit.drop_key("*", keys), site, terms))


@pytest.mark.parametrize("alpha", [-1.0, 0.0, 0.9, 3.0, 500.0])
def test_scale_key_effect_equals_scaling_the_key(terms, alpha):
    site = rg.make_site(*tensors(), **terms)
    got = rg.inspection.scale_key_effect(site, 3, alpha).change
    # far down the others' share is known to rounding only, and is then blown up
    assert_close(got, really(rg.edit.scale_key("*", 3, alpha), site, terms), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("beta", [0.0, 0.5, 4.0])
def test_scale_scores_effect_equals_scaling_the_scores(terms, beta):
    site = rg.make_site(*tensors(), **terms)
    want = really(rg.edit.scale_scores("*", beta), site, terms)
    assert_close(rg.inspection.scale_scores_effect(site, beta).change, want)
    assert_close(rg.inspection.scale_scores_effect(site, beta, slice(4, 6)).change, want[:, :, 4:6])


def test_the_error_of_the_first_order_is_quadratic(terms):
    """Twice as small a change, a quarter of the error (claim C13)."""
    site = rg.make_site(*tensors(), **terms)
    for ask in (
        lambda step: rg.inspection.scale_key_effect(site, 2, 1 + step),
        lambda step: rg.inspection.scale_scores_effect(site, 1 + step),
    ):
        big, small = (ask(step) for step in (2e-3, 1e-3))
        ratio = (big.change - big.first_order).norm() / (small.change - small.first_order).norm()
        assert 3.9 < ratio < 4.1


def test_dropping_the_only_visible_key_gives_zero():
    site = rg.make_site(*tensors(), mask=rg.Causal())
    assert_close(rg.inspection.drop_key_effect(site, 0).change[:, :, 0], -site.out[:, :, 0])


def dominated(dtype, left, sinks):
    """Half or single precision, and key 2 of every row with a weight of 1 - left."""
    q, k, v = (x.to(dtype) for x in tensors())
    scores = exact_scores(q, k, 0)
    others = scores.clone()
    others[..., 2] = -torch.inf
    if sinks is not None:
        others = torch.cat([others, sinks.view(-1, 1, 1).expand_as(others[..., :1])], -1)
    bias = torch.zeros_like(scores)
    bias[..., 2] = others.logsumexp(-1) - scores[..., 2] + math.log1p(-left) - math.log(left)
    return q, k, v, bias.float()


def exact_scores(q, k, bias):
    return q.double() @ k.double().repeat_interleave(2, 1).mT / 8**0.5 + bias


def exact_change(old, new, v, sinks):
    """Σ_j (w'_j - w_j) v_j in float64, counted from the value of key 2 so that nothing cancels."""
    zero = torch.zeros(1, 1, 1, dtype=torch.float64)
    v = v.double().repeat_interleave(2, 1)
    if sinks is not None:
        old, new = (
            torch.cat([s, b * sinks.view(-1, 1, 1).expand_as(s[..., :1])], -1)
            for s, b in (old, new)
        )
        v = torch.cat([v, zero.expand_as(v[..., :1, :])], -2)
    else:
        old, new = old[0], new[0]
    moved = new.softmax(-1) - old.softmax(-1)
    moved[..., 2] = 0
    return moved @ v - moved.sum(-1, keepdim=True) * v[..., 2:3, :]


def off(got, want):
    return float(((got.double() - want).norm(dim=-1) / want.norm(dim=-1)).max())


@pytest.mark.parametrize("sinks", [None, torch.tensor([0.5, 2.0, -1.0, 0.0]).double()])
@pytest.mark.parametrize("left", [0.3, 1e-3, 1e-6, 1e-12])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_effects_are_exact_where_one_key_has_nearly_all_the_weight(dtype, left, sinks):
    q, k, v, bias = dominated(dtype, left, sinks)
    terms = {"bias": bias, **({} if sinks is None else {"sinks": sinks.float()})}
    site, old = rg.make_site(q, k, v, **terms), exact_scores(q, k, bias)

    def really(new, beta=1.0):
        return exact_change((old, 1.0), (new, beta), v, sinks)

    for keys in ([2], [2, 4], [5]):
        gone = old.clone()
        gone[..., keys] = -torch.inf
        got = rg.inspection.drop_key_effect(site, keys)
        if keys == [5] and left < 1e-3:  # one of the others: smaller still than what is left
            assert off(got.change, got.first_order.double()) < 1e-3
        else:
            assert off(got.change, really(gone)) < 1e-3
    longer = k.clone()
    longer[..., 2, :] *= 0.5  # exact in any precision
    got = rg.inspection.scale_key_effect(site, 2, 0.5)
    assert off(got.change, really(exact_scores(q, longer, bias))) < 1e-3
    assert off(rg.inspection.scale_scores_effect(site, 0.5).change, really(0.5 * old, 0.5)) < 1e-3
    slow = rg.inspection.scale_scores_effect(site, 1 + 1e-9).first_order.double() / 1e-9
    step = 1e-5
    assert off(slow, (really((1 + step) * old, 1 + step)) / step) < 2e-3


@pytest.mark.parametrize("sinks", [None, torch.tensor([0.5, 2.0, -1.0, 0.0]).double()])
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_noise_is_right_where_one_key_has_nearly_all_the_weight(softcap, sinks):
    """In single and half precision as in double, which the draws above are compared with."""
    for dtype in (torch.float32, torch.bfloat16):
        q, k, v, bias = dominated(dtype, 1e-5, sinks)
        terms = {"bias": bias, "softcap": softcap, "sinks": sinks}
        want = rg.make_site(q.double(), k.double(), v.double(), **(terms | {"bias": bias.double()}))
        got = rg.make_site(q, k, v, **terms)
        for ask in (rg.inspection.jitter_key_effect, rg.inspection.jitter_query_effect):
            a, b = ask(got, 2, 0.3), ask(want, 2, 0.3)
            assert off(a.mean, b.mean) < 2e-3
            assert_close(a.rms.double(), b.rms, rtol=1e-3, atol=0)
            if b.exact_mean is not None:
                assert off(a.exact_mean, b.exact_mean) < 1e-3
                assert_close(a.exact_rms.double(), b.exact_rms, rtol=1e-3, atol=0)


def draws(site, terms, at: int, sigma: float, count: int):
    """Change of the outputs for many draws of a key's noise, (draw, head, row, value)."""
    q, k, v = (x.expand(count, *x.shape[1:]) for x in (site.q, site.k, site.v))
    k = k.clone()
    half = torch.randn(count // 2, k.shape[1], k.shape[-1], dtype=k.dtype)
    k[:, :, at] += sigma * torch.cat([half, -half])  # both signs, so the first order cancels
    return rg.attend(q, k, v, **terms)[0] - site.out


@pytest.mark.parametrize("sigma", [0.05, 0.8])
def test_noise_on_a_key_moves_outputs_by_these_means_and_spreads(terms, sigma):
    q, k, v = (x[:1] for x in tensors(5))
    site = rg.make_site(q, k, v, **terms)
    moved = draws(site, terms, 2, sigma, 10_000)
    got = rg.inspection.jitter_key_effect(site, 2, sigma)
    error = 5 * moved.std(0) / math.sqrt(len(moved)) + 1e-9
    assert ((moved.mean(0) - got.exact_mean[0]).abs() < error).all()
    size = moved.square().sum(-1)
    error = 6 * size.std(0) / math.sqrt(len(moved) / 2) + 1e-9
    assert ((size.mean(0) - got.exact_rms[0].square()).abs() < error).all()
    if sigma == 0.05:
        scale = got.exact_mean.abs().max()
        assert_close(got.mean / scale, got.exact_mean / scale, rtol=0, atol=0.02)
        assert_close(got.rms, got.exact_rms, rtol=0.05, atol=1e-6)


def test_noise_on_a_query_is_half_the_laplacian_and_the_jacobian(terms):
    """mean = ½ sigma² Σ_f ∂²h / ∂q_f², rms = sigma |∂h / ∂q|, here by automatic derivatives."""
    q, k, v = (x[:1] for x in tensors(5))
    site, sigma, at = rg.make_site(q, k, v, **terms), 0.05, 4

    def output(row):  # (head, feat) to (head, value); heads do not meet
        moved = torch.cat([q[:, :, :at], row[None, :, None]], -2)
        return rg.attend(moved, k, v, **terms, backend="reference")[0][0, :, at]

    row, heads = q[0, :, at], range(4)
    slope = torch.autograd.functional.jacobian(output, row)
    bends = [
        torch.autograd.functional.hessian(lambda x, c=c: output(x)[:, c].sum(), row)
        for c in range(8)
    ]
    laplacian = torch.stack([torch.stack([b[h, :, h].trace() for b in bends]) for h in heads])
    got = rg.inspection.jitter_query_effect(site, at, sigma)
    assert_close(got.mean[0, :, 0], 0.5 * sigma**2 * laplacian)
    assert_close(got.rms[0, :, 0], sigma * torch.stack([slope[h, :, h].norm() for h in heads]))


def test_the_mean_change_of_zero_mean_noise_is_not_zero():
    """Claim C5: ½ sigma² beta² |q|² w (1 - 2w) (v - h)."""
    q = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    k = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    v = torch.tensor([[1.0], [2.0], [6.0]], dtype=torch.float64)
    site = rg.make_site(q, k, v, scale=1.0)
    w = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64).softmax(-1)
    h = w @ v[:, 0]
    want = 0.5 * 0.1**2 * 5 * w[0] * (1 - 2 * w[0]) * (1 - h)
    assert_close(rg.inspection.jitter_key_effect(site, 0, 0.1).mean.item(), want.item())


def test_an_answer_costs_less_than_the_attention_itself():
    q, k, v = torch.randn(3, 1, 4, 4096, 64)
    site = rg.make_site(q, k, v, mask=rg.Causal())

    def quickest(ask):
        begins = [(time.perf_counter(), ask(), time.perf_counter()) for _ in range(3)]
        return min(end - begin for begin, _, end in begins)

    again = quickest(lambda: rg.attend(q, k, v, mask=rg.Causal()))
    assert quickest(lambda: rg.inspection.drop_key_effect(site, 7)) < again
    assert quickest(lambda: rg.inspection.scale_key_effect(site, 7, 1.5)) < again


@pytest.mark.usefixtures("users_view")
def test_effects_without_a_closed_form_raise():
    q, k, v = tensors()
    asking = rg.make_site(q, k, v, bias=rg.RelativeKeys(torch.zeros(3, 8, dtype=torch.float64)))
    for ask in (rg.inspection.jitter_key_effect, rg.inspection.jitter_query_effect):
        with pytest.raises(ShapeError, match="site: needs plain dot-product scores"):
            ask(asking, 0, 0.1)
    with pytest.raises(ShapeError, match="key: needs 0 to 8, got 9"):
        rg.inspection.scale_key_effect(asking, 9, 2.0)
    own = rg.make_site(q, k, v, score=rg.ops.dot)
    assert rg.inspection.scale_key_effect(own, 0, 2.0).first_order is None
