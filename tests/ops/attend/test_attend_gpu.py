import pytest
import torch

from regard import ops
from regard.ops import attend, biases, influence, masks, survey, window

pytestmark = pytest.mark.gpu

TERMS = {
    "plain": lambda b, h, q, k: {},
    "causal": lambda b, h, q, k: {"mask": ops.Causal()},
    "window": lambda b, h, q, k: {"mask": ops.Causal() & ops.Local(20)},
    "offset": lambda b, h, q, k: {"mask": ops.Causal(), "offset": 7},
    "padding": lambda b, h, q, k: {"mask": ops.Padding(torch.arange(b).cuda() * 30)},
    "dense": lambda b, h, q, k: {"mask": masks.DenseMask(torch.rand(q, k).cuda() > 0.4)},
    "alibi": lambda b, h, q, k: {"bias": ops.ALiBi(ops.alibi_slopes(h).cuda())},
    "dense bias": lambda b, h, q, k: {"bias": biases.DenseBias(torch.randn(h, q, k).cuda())},
    "sinks": lambda b, h, q, k: {"sinks": torch.randn(h).cuda()},
}
FLEX = {
    "softcap": lambda b, h, q, k: {"softcap": 2.0, "mask": ops.Causal()},
    "toeplitz": lambda b, h, q, k: {"bias": ops.Toeplitz(torch.randn(h, 9).cuda())},
}


def draw(dtype, queries=100, keys=100, head_dim=24, value=24):
    q = torch.randn(2, 4, queries, head_dim, device="cuda", dtype=dtype, requires_grad=True)
    k = torch.randn(2, 2, keys, head_dim, device="cuda", dtype=dtype, requires_grad=True)
    v = torch.randn(2, 2, keys, value, device="cuda", dtype=dtype, requires_grad=True)
    return q, k, v


def assert_near(backend, dtype, terms, value=24):
    q, k, v = draw(dtype, value=value)
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    want, want_lse = attend(*wide, backend="reference", **terms)
    out, lse = attend(q, k, v, backend=backend, **terms)
    step = torch.randn_like(want)
    grads = torch.autograd.grad((out.double() * step).sum(), (q, k, v))
    want_grads = torch.autograd.grad((want * step).sum(), wide)
    bound = 2e-2 if dtype == torch.bfloat16 else 2e-3
    seen = want_lse != -torch.inf
    assert (lse[~seen] == -torch.inf).all()
    assert (lse[seen] - want_lse[seen]).abs().max() < bound
    for got, true in zip((out, *grads), (want, *want_grads), strict=True):
        assert (got.double() - true).norm() <= bound * true.norm()


@pytest.mark.parametrize("kind", TERMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_is_the_reference_on_cuda(kind, dtype):
    assert_near("fused", dtype, TERMS[kind](2, 4, 100, 100))


def test_fused_takes_values_of_another_width_on_cuda():
    assert_near("fused", torch.bfloat16, {"mask": ops.Causal()}, value=40)


# torch 2.11 warns of itself: of a name of its own, and of reading .grad while it traces
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("kind", FLEX)
def test_flex_is_the_reference_on_cuda(kind):
    assert_near("flex", torch.float32, FLEX[kind](2, 4, 100, 100))


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("causal", torch.float32)] + [(kind, torch.bfloat16) for kind in (*TERMS, *FLEX)],
)
def test_kernels_are_the_reference_on_cuda(kind, dtype):
    q, k, v = (x.detach() for x in draw(dtype, 300, 300, head_dim=64, value=64))
    terms = (TERMS | FLEX)[kind](2, 4, 300, 300)
    wide = [x.double() for x in (q, k, v)]
    out, lse = attend(*wide, backend="reference", **terms)
    want = survey(*wide[:2], lse, backend="reference", **terms)
    got = survey(q, k, lse.float(), backend="kernel", **terms)
    for name in (
        "entropy",
        "peak",
        "mean_distance",
        "mean_offset",
        "self_share",
        "previous_share",
        "first_share",
        "local_share",
        "received",
    ):
        a, b = getattr(got, name), getattr(want, name)
        assert (a - b).norm() <= 1e-4 * b.norm() + 1e-6, name
    part = {"rows": slice(3, 9), "keys": slice(0, 5), **terms}
    torch.testing.assert_close(
        window(q, k, lse.float(), **part),
        window(*wide[:2], lse, **part).float(),
        rtol=1e-3,
        atol=1e-5,
    )
    want = influence(*wide, out, lse, backend="reference", **terms)
    got = influence(q, k, v, out.to(dtype), lse.float(), backend="kernel", **terms)
    for name in ("effect_on_query", "effect_of_key", "strongest"):
        a, b = getattr(got, name), getattr(want, name)
        assert (a - b).norm() <= 1e-3 * b.norm(), name
