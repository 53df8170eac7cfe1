"""Attention without its log-sum-exp: the same output by SDPA."""

from contextlib import nullcontext

import pytest
import torch
from torch.testing import assert_close

from regard import nn
from regard.ops import Causal, Local, Padding, attend
from regard.ops.attend import fused
from regard.ops.intercept import intercepting

MASKS = {
    "none": None,
    "causal": Causal(),
    "padding": Padding(torch.tensor([7, 3, 0])),
    "both": Causal() & Padding(torch.tensor([7, 3, 0])),
    "twice": Padding(torch.tensor([7, 3, 0])) & Padding(torch.tensor([5, 7, 7])),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize("heads", [4, 2], ids=["plain", "grouped"])
def test_sdpa_is_attend_with_gradients(mask, heads):
    q = torch.randn(3, 4, 7, 8, requires_grad=True)
    k, v = (torch.randn(3, heads, 7, 8, requires_grad=True) for _ in range(2))
    weight = torch.randn(3, 4, 7, 8)
    ours, theirs = attend(q, k, v, mask=mask)[0], fused.attend_by_sdpa(q, k, v, mask, 0.3, 0.0)
    assert_close(theirs, attend(q, k, v, mask=mask, scale=0.3)[0])
    one = torch.autograd.grad((ours * weight).sum(), (q, k, v))
    two = torch.autograd.grad(
        (fused.attend_by_sdpa(q, k, v, mask, None, 0.0) * weight).sum(), (q, k, v)
    )
    for got, want, name in zip(two, one, "qkv", strict=True):
        assert_close(got, want, atol=1e-5, rtol=1e-4, msg=lambda m, name=name: f"{name}: {m}")


def test_a_layer_is_intercepted():
    seen = []

    def note(call, proceed):
        seen.append(call.q.shape)
        return proceed(call)

    layer = nn.MultiHeadAttention(8, 2)
    with intercepting(note):
        layer(torch.randn(1, 3, 8), mask=Causal())
    assert seen == [(1, 2, 3, 4)]


def test_only_causal_and_padding_masks_go_to_sdpa():
    def fits(mask, *, square=True, **terms):
        return fused.is_sdpa_mask({"mask": mask, **terms}, square=square)

    assert fits(MASKS["both"])
    assert not fused.is_sdpa_mask({"mask": MASKS["both"]}, square=True, masks=1)
    assert not fits(Causal(), square=False)  # torch would start the diagonal elsewhere
    assert not fits(Causal(), offset=1)
    assert not fits(Causal() & Local(2))
    assert not fits(Padding(torch.tensor([3]), left_padding=torch.tensor([1])))
    assert not fits(Causal(), scale=-1.0)
    assert not fits(None, softcap=3.0)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize("heads", [4, 2], ids=["plain", "grouped"])
@pytest.mark.parametrize("width", [8, 64])
def test_recording_changes_no_bit_of_an_output_or_a_gradient(mask, heads, width):
    q = torch.randn(3, 4, 7, width, requires_grad=True)
    k, v = (torch.randn(3, heads, 7, width, requires_grad=True) for _ in range(2))
    results = []
    for interceptor in (None, lambda call, proceed: proceed(call)):
        with intercepting(interceptor) if interceptor else nullcontext():
            out = attend(q, k, v, mask=mask, need_lse=False)[0]
        results.append([out, *torch.autograd.grad(out.square().sum(), (q, k, v))])
    for plain, recorded in zip(*results, strict=True):
        assert torch.equal(plain, recorded)


def test_a_nan_stays_in_an_output_without_its_log_sum_exp():
    q = torch.randn(1, 2, 3, 4)
    q[0, 1, 2, 0] = torch.nan
    out = attend(q, q.nan_to_num(), q.nan_to_num(), need_lse=False)[0]
    assert out.isnan().nonzero().tolist() == [[0, 1, 2, n] for n in range(4)]
