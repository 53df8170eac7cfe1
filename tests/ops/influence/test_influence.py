import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from regard import ops
from regard.errors import ShapeError
from regard.ops import attend, influence, influence_window, masks, packed_linear, tiling
from regard.ops.influence.effect import RowBand

TERMS = {
    "plain": lambda b, h, q, k: {},
    "causal": lambda b, h, q, k: {"mask": ops.Causal()},
    "padding": lambda b, h, q, k: {"mask": ops.Padding(torch.arange(1, b + 1))},
    "dense": lambda b, h, q, k: {"mask": masks.DenseMask(torch.rand(q, k) > 0.4)},
    "alibi": lambda b, h, q, k: {"bias": ops.ALiBi(ops.alibi_slopes(h).double())},
    "softcap": lambda b, h, q, k: {"softcap": 1.0},
    "sinks": lambda b, h, q, k: {"sinks": torch.randn(h, dtype=torch.float64)},
    "offset": lambda b, h, q, k: {"mask": ops.Causal(), "offset": 2},
}


def draw(queries=5, keys=6):
    q = torch.randn(2, 4, queries, 3, dtype=torch.float64)
    k = torch.randn(2, 2, keys, 3, dtype=torch.float64)
    v = torch.randn(2, 2, keys, 2, dtype=torch.float64)
    return q, k, v


# Worked numbers


def test_the_only_key_leaves_zeros_when_it_goes():
    q, k, v = torch.zeros(1, 2), torch.zeros(1, 2), torch.tensor([[3.0, 4.0]])
    out, lse = attend(q, k, v)
    assert_close(influence(q, k, v, out, lse).effect_of_key, torch.tensor([5.0]))


# Against doing it for real


@pytest.mark.parametrize("kind", TERMS)
def test_remove_equals_attention_without_the_key(kind):
    q, k, v = draw()
    terms = TERMS[kind](2, 4, 5, 6)
    out, lse = attend(q, k, v, **terms)
    e = influence_window(q, k, v, out, lse, **terms)
    for j in range(6):
        gone = masks.DenseMask((torch.arange(6) != j)[None])
        mask = gone if terms.get("mask") is None else terms["mask"] & gone
        really, _ = attend(q, k, v, **(terms | {"mask": mask}))
        assert_close(e[..., j], (really - out).norm(dim=-1))


@pytest.mark.parametrize("kind", TERMS)
@pytest.mark.parametrize("alpha", [0.0, 0.5, 2.0, -3.0])
def test_scale_equals_attention_with_the_scaled_key(kind, alpha):
    q, k, v = draw()
    terms = TERMS[kind](2, 4, 5, 6)
    out, lse = attend(q, k, v, **terms)
    e = influence_window(q, k, v, out, lse, effect="scale", alpha=alpha, **terms)
    for j in range(6):
        longer = k.clone()
        longer[..., j, :] *= alpha
        really, _ = attend(q, longer, v, **terms)
        assert_close(e[..., j], (really - out).norm(dim=-1))


def test_the_slope_is_the_derivative_to_the_score():
    q, k, v = draw(queries=2, keys=3)
    out, lse = attend(q, k, v)
    e = influence_window(q, k, v, out, lse, effect="slope")
    bias = torch.zeros(2, 4, 2, 3, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(
        lambda b: attend(q, k, v, bias=ops.biases.DenseBias(b), backend="reference")[0], bias
    )
    for at in [(0, 0, 0, 0), (1, 3, 1, 2)]:
        own = jacobian[at[:3]][(slice(None), *at)]
        assert_close(e[at], own.norm())


# Forms


@pytest.mark.parametrize("kind", TERMS)
@pytest.mark.parametrize("effect", ["remove", "slope", "scale"])
def test_tiled_is_the_reference(kind, effect, monkeypatch):
    monkeypatch.setattr(tiling, "CPU_TILE", tiling.TileSize(64, 2, 4))
    q, k, v = draw()
    terms = TERMS[kind](2, 4, 5, 6)
    out, lse = attend(q, k, v, **terms)
    want = influence(q, k, v, out, lse, effect=effect, backend="reference", **terms)
    got = influence(q, k, v, out, lse, effect=effect, backend="tiled", **terms)
    for name in ("strongest", "strongest_key", "effect_on_query", "effect_of_key"):
        assert_close(getattr(got, name), getattr(want, name), msg=lambda m, n=name: f"{n}: {m}")


@given(st.integers(1, 7), st.integers(1, 7))
def test_what_is_felt_is_what_is_caused(queries, keys):
    q, k, v = draw(queries, keys)
    out, lse = attend(q, k, v)
    found = influence(q, k, v, out, lse)
    assert_close(found.effect_on_query.sum(-1), found.effect_of_key.sum(-1))
    e = influence_window(q, k, v, out, lse)
    assert_close(found.effect_of_key, e.sum(-2))
    assert_close(found.strongest, e.amax(-1))


# Errors


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"effect": "drop"}, "effect: needs remove, slope or scale, got 'drop'"),
        ({"alpha": torch.inf}, "alpha: needs a finite number"),
        ({"out": torch.zeros(2, 4, 5, 3)}, r"out: needs one output for each query, \(2, 4, 5, 2\)"),
        ({"lse": torch.zeros(2, 4, 6)}, "lse: needs one for each query"),
        ({"effect": "scale", "score": ops.dot}, "effect: needs a dot product"),
    ],
)
def test_bad_input_raises_with_its_numbers(change, message):
    q, k, v = draw()
    out, lse = attend(q, k, v)
    with pytest.raises(ShapeError, match=message):
        influence(**({"q": q, "k": k, "v": v, "out": out, "lse": lse} | change))


@pytest.mark.parametrize("mask", [None, ops.Causal() & ops.Local(90)], ids=repr)
@pytest.mark.parametrize("slow", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_diffuse_tiles_take_the_fast_path_and_agree(mask, slow, dtype, monkeypatch):
    monkeypatch.setattr(packed_linear, "mkl_is_slow", lambda: slow)
    monkeypatch.setattr(tiling, "CPU_TILE", tiling.TileSize(1, 65, 70))
    q, v = 0.3 * torch.randn(2, 4, 200, 8, dtype=dtype), torch.randn(2, 2, 200, 5, dtype=dtype)
    k = torch.randn(2, 2, 200, 8, dtype=dtype)
    out, lse = ops.attend(q, k, v, mask=mask)
    tiles, effects = [], RowBand.effects
    monkeypatch.setattr(RowBand, "effects", lambda *x: tiles.append(x[1]) or effects(*x))
    got = ops.influence(q, k, v, out, lse, mask=mask, backend="tiled")
    # the first rows of a causal map see few keys
    assert len(tiles) == 0 if mask is None else len(tiles) <= 2
    exact = [x.double() for x in (q, k, v)]
    want = ops.influence(*exact, *ops.attend(*exact, mask=mask), mask=mask, backend="reference")
    for name in ("strongest", "effect_on_query", "effect_of_key"):
        torch.testing.assert_close(
            getattr(got, name).double(), getattr(want, name), rtol=1e-4, atol=1e-5
        )
    if dtype == torch.float64:
        assert torch.equal(got.strongest_key, want.strongest_key)
