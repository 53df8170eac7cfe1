"""Attention does not depend on the strides of q, k and v."""

from itertools import product

import pytest
import torch
from torch.testing import assert_close

from regard.ops import Causal, Local, attend


def upright(x: torch.Tensor) -> torch.Tensor:
    return x.mT.contiguous().mT  # tokens as columns, seen as rows


def every_second(x: torch.Tensor) -> torch.Tensor:
    return x.repeat_interleave(2, -1)[..., ::2]


def heads_inside(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(-3, -2).contiguous().transpose(-3, -2)


def as_it_is(x: torch.Tensor) -> torch.Tensor:
    return x


LAYOUTS = (as_it_is, upright, every_second, heads_inside)


@pytest.mark.parametrize("backend", ["fused", "tiled", "auto"])
@pytest.mark.parametrize("mask", [None, Causal(), Local(1)], ids=repr)
def test_layout_in_memory_changes_nothing(backend, mask):
    q, k, v, weight = torch.randn(4, 2, 3, 5, 8, dtype=torch.float64)
    want = answers(q, k, v, weight, mask, "reference")
    for lay_q, lay_k, lay_v in product(LAYOUTS, repeat=3):
        got = answers(lay_q(q), lay_k(k), lay_v(v), weight, mask, backend)
        assert_close(got, want)


def answers(q, k, v, weight, mask, backend) -> tuple[torch.Tensor, ...]:
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    out, lse = attend(q, k, v, mask=mask, backend=backend)
    grads = torch.autograd.grad((out * weight).sum() + lse.sum(), (q, k, v))
    return out, lse, *grads
