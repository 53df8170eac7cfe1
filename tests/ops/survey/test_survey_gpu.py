"""The kernels of survey and influence for real, over tiles of every kind."""

from typing import Any

import pytest
import torch

from regard import ops
from regard.errors import BackendError
from regard.ops import attend, influence, survey
from regard.ops.survey.statistics import KERNEL_STATISTICS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]
kernel = pytest.importorskip("regard.ops.survey.kernel")

SHAPES = {  # queries, keys, offset
    "square": (1024, 1024, 0),
    "odd": (1000, 901, 0),
    "one block": (64, 256, 0),
    "few keys": (300, 130, 0),
    "later": (512, 1536, 1024),
    "past the keys": (600, 300, 0),
    "in the middle": (333, 1100, 401),
}


def draw(queries, keys, head_dim, dtype=torch.bfloat16, device="cuda"):
    # heads inside time, as models lay them out
    q = torch.randn(2, queries, 4, head_dim, dtype=dtype, device=device).transpose(1, 2)
    k = torch.randn(2, keys, 2, head_dim, dtype=dtype, device=device).transpose(1, 2)
    return q, k, torch.randn_like(k)


def assert_near(got, want, name):
    assert (got.isfinite() == want.isfinite()).all(), name
    got, want = got[want.isfinite()].double(), want[want.isfinite()].double()
    assert (got - want).norm() <= 1e-4 * want.norm() + 1e-6, name


@pytest.mark.parametrize("mask", [None, ops.Causal(), ops.Causal() & ops.Local(200)])
@pytest.mark.parametrize("head_dim", [64, 128, 80])
@pytest.mark.parametrize("shape", SHAPES)
def test_kernels_are_the_reference(shape, head_dim, mask):
    queries, keys, offset = SHAPES[shape]
    q, k, v = draw(queries, keys, head_dim)
    terms = {"mask": mask, "offset": offset}
    q64, k64, v64 = q.double(), k.double(), v.double()
    out, lse = attend(q64, k64, v64, backend="tiled", **terms)
    ask = {"statistics": KERNEL_STATISTICS, "first_keys": 3, "radius": 4}
    want: Any = survey(q64, k64, lse, backend="tiled", **ask, **terms)
    got: Any = survey(q, k, lse.float(), backend="kernel", **ask, **terms)
    for name in KERNEL_STATISTICS - {"peak_key"}:
        assert_near(getattr(got, name), getattr(want, name), name)
    weights = ops.window(q64, k64, lse, **terms)
    seen = want.peak_key >= 0
    assert (got.peak_key[~seen] == -1).all()
    at = weights.gather(-1, got.peak_key.clamp(min=0)[..., None])[..., 0]
    assert_near(at[seen], want.peak[seen], "peak_key")
    want = influence(q64, k64, v64, out, lse, backend="tiled", **terms)
    got = influence(q, k, v, out.to(v.dtype), lse.float(), backend="kernel", **terms)
    for name in ("effect_on_query", "effect_of_key", "strongest"):
        a, b = getattr(got, name), getattr(want, name)
        assert (a - b).norm() <= 1e-3 * b.norm() + 1e-5, name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("head_dim", [320, 512])
def test_kernels_of_wide_heads_are_the_reference(head_dim, dtype):
    q, k, v = draw(300, 333, head_dim, dtype)
    terms = {"mask": ops.Causal(), "offset": 33}
    q64, k64, v64 = q.double(), k.double(), v.double()
    out, lse = attend(q64, k64, v64, backend="tiled", **terms)
    fused, fused_lse = attend(q, k, v, backend="fused", **terms)
    assert_near(fused_lse, lse, "lse")
    assert (fused - out).norm() <= (1e-2 if dtype == torch.bfloat16 else 1e-5) * out.norm()
    ask = {"statistics": KERNEL_STATISTICS, "first_keys": 3, "radius": 4}
    want: Any = survey(q64, k64, lse, backend="tiled", **ask, **terms)
    got: Any = survey(q, k, lse.float(), backend="kernel", **ask, **terms)
    for name in KERNEL_STATISTICS - {"peak_key"}:
        assert_near(getattr(got, name), getattr(want, name), name)
    want = influence(q64, k64, v64, out, lse, backend="tiled", **terms)
    if dtype == torch.float32:  # its tiles do not fit into shared memory
        with pytest.raises(BackendError, match="needs half precision for keys and values"):
            influence(q, k, v, out.float(), lse.float(), backend="kernel", **terms)
    backend = "auto" if dtype == torch.float32 else "kernel"
    got = influence(q, k, v, out.to(v.dtype), lse.float(), backend=backend, **terms)
    for name in ("effect_on_query", "effect_of_key", "strongest"):
        a, b = getattr(got, name), getattr(want, name)
        assert (a - b).norm() <= 1e-3 * b.norm() + 1e-5, name


def test_a_look_takes_the_kernel_that_torch_takes():
    import torch.nn.functional as F

    q, k, v = draw(512, 512, 64)
    plain = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    out, lse = attend(q, k, v, mask=ops.Causal(), backend="fused")
    torch.testing.assert_close(out, plain, rtol=0, atol=0)
    want = attend(q.double(), k.double(), v.double(), mask=ops.Causal(), backend="reference")[1]
    torch.testing.assert_close(lse.double(), want, rtol=1e-5, atol=1e-4)
