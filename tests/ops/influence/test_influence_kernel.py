import pytest
import torch

from regard import ops
from regard.errors import BackendError
from regard.ops import attend, influence, influence_window, masks

pytest.importorskip("regard.ops.influence.kernel")

TERMS = {
    "plain": lambda b, h, q, k: {},
    "causal": lambda b, h, q, k: {"mask": ops.Causal()},
    "window": lambda b, h, q, k: {"mask": ops.Causal() & ops.Local(20)},
    "padding": lambda b, h, q, k: {"mask": ops.Padding(torch.arange(1, b + 1) * k // b)},
    "dense": lambda b, h, q, k: {"mask": masks.DenseMask(torch.rand(h, q, k) > 0.4)},
    "softcap": lambda b, h, q, k: {"softcap": 1.0, "mask": ops.Causal()},
    "sinks": lambda b, h, q, k: {"sinks": torch.randn(h)},
    "offset": lambda b, h, q, k: {"mask": ops.Causal(), "offset": 7},
}


def draw(queries=33, keys=40, head_dim=8, value=12):
    q = torch.randn(1, 2, queries, head_dim) / 2  # no weight so near 1 that 1 - w is only rounding
    k, v = torch.randn(1, 1, keys, head_dim), torch.randn(1, 1, keys, value)
    return q, k, v


@pytest.mark.parametrize("kind", TERMS)
@pytest.mark.parametrize("effect", ["remove", "slope"])
def test_kernel_is_the_reference(kind, effect):
    q, k, v = draw()
    terms = TERMS[kind](1, 2, 33, 40)
    out, lse = attend(q, k, v, **terms)
    ask = {"effect": effect, **terms}
    want = influence(q, k, v, out, lse, backend="reference", **ask)
    got = influence(q, k, v, out, lse, backend="kernel", **ask)
    for name in ("strongest", "effect_on_query", "effect_of_key"):
        a, b = getattr(got, name), getattr(want, name)
        assert (a - b).norm() < 1e-3 * b.norm(), name
    at = got.strongest_key.clamp(min=0)  # -1 where nothing moves the output
    e = influence_window(q, k, v, out, lse, **ask).gather(-1, at[..., None])
    torch.testing.assert_close(e[..., 0], got.strongest, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("head_dim", "value"), [(320, 512), (512, 320)])
def test_kernel_takes_wide_heads(head_dim, value):
    q, k, v = draw(18, 40, head_dim, value)
    terms = {"mask": ops.Causal(), "offset": 22}
    q = q * (8 / head_dim) ** 0.5
    out, lse = attend(q, k, v, **terms)
    want = influence(q, k, v, out, lse, backend="reference", **terms)
    got = influence(q, k, v, out, lse, backend="kernel", **terms)
    for name in ("strongest", "effect_on_query", "effect_of_key"):
        a, b = getattr(got, name), getattr(want, name)
        assert (a - b).norm() < 1e-3 * b.norm(), name


def test_what_the_kernel_cannot_compute_raises():
    q, k, v = draw(head_dim=513)
    out, lse = attend(q, k, v)
    with pytest.raises(BackendError, match="needs head_dim of at most 512, got 513"):
        influence(q, k, v, out, lse, backend="kernel")
    q, k, v = draw(value=513)
    out, lse = attend(q, k, v)
    with pytest.raises(BackendError, match="needs a value dim of at most 512, got 513"):
        influence(q, k, v, out, lse, backend="kernel")
    q, k, v = draw()
    out, lse = attend(q, k, v)
    with pytest.raises(BackendError, match="computes remove and slope"):
        influence(q, k, v, out, lse, effect="scale", backend="kernel")
