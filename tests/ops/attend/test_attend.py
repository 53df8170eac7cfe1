from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from regard import ops
from regard.errors import BackendError, ShapeError
from regard.ops import attend, attention_weights, biases, masks

small = st.integers(1, 5)


def qkv(*batch, heads=4, kv_heads=None, queries=6, keys=6, head_dim=4, value=4, grad=True):
    draw = partial(torch.randn, dtype=torch.float64, requires_grad=grad)
    kv_heads = heads if kv_heads is None else kv_heads
    return (
        draw(*batch, heads, queries, head_dim),
        draw(*batch, kv_heads, keys, head_dim),
        draw(*batch, kv_heads, keys, value),
    )


MASKS = {
    "none": lambda b, q, k: None,
    "causal": lambda b, q, k: ops.Causal(),
    "local": lambda b, q, k: ops.Local(1),
    "window": lambda b, q, k: ops.Causal() & ops.Local(2),
    "chunked": lambda b, q, k: ops.Chunked(2, left_chunks=1),
    "padding": lambda b, q, k: ops.Padding(torch.arange(b) % (k + 1)),
    "left padding": lambda b, q, k: ops.Padding(
        torch.full((b,), k), left_padding=torch.arange(b) % k
    ),
    "documents": lambda b, q, k: ops.Documents((torch.arange(max(q, k) + 8) // 2).expand(b, -1)),
    "dense": lambda b, q, k: masks.DenseMask(torch.rand(q, k) > 0.5),
    "either": lambda b, q, k: ops.Local(0) | ops.Padding(torch.ones(b, dtype=torch.long)),
    "nothing": lambda b, q, k: masks.DenseMask(torch.zeros(q, k, dtype=torch.bool)),
}

BIASES = {
    "none": lambda h, q, k, head_dim: None,
    "alibi": lambda h, q, k, head_dim: ops.ALiBi(ops.alibi_slopes(h).double()),
    "toeplitz": lambda h, q, k, head_dim: ops.Toeplitz(torch.randn(h, 5, dtype=torch.float64)),
    "buckets": lambda h, q, k, head_dim: ops.Buckets(
        torch.randn(8, h, dtype=torch.float64), True, 16
    ),
    "relative": lambda h, q, k, head_dim: ops.RelativeKeys(
        torch.randn(7, head_dim, dtype=torch.float64)
    ),
    "dense": lambda h, q, k, head_dim: biases.DenseBias(torch.randn(h, q, k, dtype=torch.float64)),
    "sum": lambda h, q, k, head_dim: (
        ops.ALiBi(ops.alibi_slopes(h).double()) + biases.DenseBias(torch.ones(q, k).double())
    ),
}


def answer(backend, q, k, v, dout, dlse, **terms):
    """Output, lse and every gradient of one backend, by name."""
    out, lse = attend(q, k, v, backend=backend, **terms)
    seen = torch.where(lse == -torch.inf, 0, lse)
    loss = (out * dout).sum() + (seen * dlse).sum()
    learned = [x for x in (terms.get("sinks"),) if x is not None]
    grads = torch.autograd.grad(loss, [q, k, v, *learned], allow_unused=True)
    names = ("out", "lse", "dq", "dk", "dv", "dsinks")
    return dict(zip(names, (out, lse, *grads), strict=False))


def assert_forms_agree(q, k, v, backend="fused", **terms):
    dout = torch.randn(*q.shape[:-1], v.shape[-1], dtype=torch.float64)
    dlse = torch.randn(q.shape[:-1], dtype=torch.float64)
    want = answer("reference", q, k, v, dout, dlse, **terms)
    got = answer(backend, q, k, v, dout, dlse, **terms)
    for name in want:
        assert want[name] is not None
        assert not want[name].isnan().any(), name
        assert_close(got[name], want[name], msg=lambda m, name=name: f"{name}: {m}")


# Worked numbers


def test_a_query_without_visible_keys_gets_zeros_and_affects_no_other():
    q, k, v = qkv(1, queries=3, keys=3)
    mask = masks.DenseMask(torch.tensor([[True, True, False], [False, False, False], [True] * 3]))
    for backend in ("reference", "tiled", "fused"):
        out, lse = attend(q, k, v, mask=mask, backend=backend)
        assert (out[..., 1, :] == 0).all()
        assert (lse[..., 1] == -torch.inf).all()
        grads = torch.autograd.grad(out.sum() + lse[..., 0].sum(), (q, k, v))
        assert all(g.isfinite().all() for g in grads)
        assert (grads[0][..., 1, :] == 0).all()


def test_no_keys_at_all_gives_zeros():
    q, k, v = qkv(2, keys=0)
    out, lse = attend(q, k, v)
    assert (out == 0).all()
    assert (lse == -torch.inf).all()


def test_no_queries_gives_nothing():
    out, lse = attend(*qkv(2, queries=0))
    assert out.shape == (2, 4, 0, 4)
    assert lse.shape == (2, 4, 0)


def test_sinks_take_their_share_and_give_nothing():
    q, k, v = torch.zeros(1, 1, 2), torch.zeros(1, 3, 2), torch.ones(1, 3, 2)
    out, lse = attend(q, k, v, sinks=torch.zeros(1))
    assert_close(out, torch.full((1, 1, 2), 0.75))
    assert_close(lse, torch.full((1, 1), 4.0).log())


def test_softcap_bounds_every_score():
    q, k = 100 * torch.ones(1, 1), 100 * torch.ones(1, 1)
    _, lse = attend(q, k, torch.ones(1, 1), softcap=5.0)
    assert_close(lse, torch.tensor([5.0]))


def test_offset_places_the_queries_among_the_keys():
    q, k, v = qkv(1, queries=5, keys=5)
    whole, _ = attend(q, k, v, mask=ops.Causal())
    last, _ = attend(q[..., 3:, :], k, v, mask=ops.Causal(), offset=3)
    assert_close(last, whole[..., 3:, :])


@pytest.mark.parametrize("mask", [ops.Local(2), ops.Chunked(2, left_chunks=0)], ids=repr)
@pytest.mark.parametrize("backend", ["tiled", "fused"])
def test_queries_far_beyond_the_keys_see_none(mask, backend):
    assert_forms_agree(*qkv(queries=2, keys=1), backend, mask=mask, offset=5)


# Properties


@given(queries=small, keys=small, beta=st.floats(0, 20))
def test_weights_of_a_row_sum_to_one(queries, keys, beta):
    q, k, _ = qkv(queries=queries, keys=keys)
    w = attention_weights(q, k, scale=beta)
    assert_close(w.sum(-1), torch.ones(4, queries, dtype=torch.float64))


@given(time=small, head_dim=small, value=small, data=st.data())
def test_causal_outputs_do_not_depend_on_later_tokens(time, head_dim, value, data):
    q, k, v = qkv(queries=time, keys=time, head_dim=head_dim, value=value, grad=False)
    now = data.draw(st.integers(0, time - 1))
    for backend in ("reference", "tiled", "fused"):
        before, _ = attend(q, k, v, mask=ops.Causal(), backend=backend)
        k2, v2 = k.clone(), v.clone()
        k2[:, now + 1 :], v2[:, now + 1 :] = 7.0, -7.0
        after, _ = attend(q, k2, v2, mask=ops.Causal(), backend=backend)
        assert_close(after[:, : now + 1], before[:, : now + 1], rtol=0, atol=0)


@given(queries=small, keys=small)
def test_any_weight_can_be_recomputed_from_lse(queries, keys):
    q, k, v = qkv(queries=queries, keys=keys)
    _, lse = attend(q, k, v, backend="fused")
    later = torch.exp(q @ k.mT / 2 - lse[..., None])
    assert_close(later, attention_weights(q, k))


@given(keys=small, scale=st.floats(-3, 3))
def test_output_lies_among_the_values(keys, scale):
    q, k, v = qkv(keys=keys)
    out, _ = attend(q, k, v, scale=scale)
    assert (out <= v.amax(-2, keepdim=True) + 1e-12).all()
    assert (out >= v.amin(-2, keepdim=True) - 1e-12).all()


def test_row_and_column_conventions_are_transposes():
    q, k, v = qkv(queries=5, keys=3, grad=False)
    out, _ = attend(q, k, v)
    by_columns = v.mT @ (k @ q.mT / 2).softmax(-2)  # tokens as columns, softmax down
    assert_close(by_columns.mT, out)


# Parity: every backend with the reference, output, lse and gradients


@pytest.mark.parametrize("backend", ["fused", "tiled"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("bias", BIASES)
def test_every_backend_is_the_reference(backend, mask, bias):
    q, k, v = qkv(2, heads=4, kv_heads=2, queries=5, keys=7, value=3)
    mask, bias = MASKS[mask](2, 5, 7), BIASES[bias](4, 5, 7, 4)
    if (
        backend == "fused" and bias is not None and bias.depends_on_query
    ):  # no gradient: values alone
        with torch.no_grad():
            terms = {"mask": mask, "bias": bias, "offset": 1}
            want = attend(q, k, v, backend="reference", **terms)
            assert_close(attend(q, k, v, backend="fused", **terms), want)
        return
    assert_forms_agree(q, k, v, backend, mask=mask, bias=bias, offset=1, scale=0.7)


@settings(max_examples=20)
@given(
    backend=st.sampled_from(["fused", "tiled"]),
    mask=st.sampled_from(sorted(MASKS)),
    batch=st.lists(small, max_size=3),
    heads=st.sampled_from([(1, 1), (4, 2), (3, 1), (2, 2)]),
    queries=small,
    keys=small,
    head_dim=small,
    value=small,
    offset=st.integers(0, 3),
)
def test_every_backend_is_the_reference_at_any_shape(
    backend, mask, batch, heads, queries, keys, head_dim, value, offset
):
    q, k, v = qkv(
        *batch,
        heads=heads[0],
        kv_heads=heads[1],
        queries=queries,
        keys=keys,
        head_dim=head_dim,
        value=value,
    )
    sequences = torch.Size(batch).numel() if batch else heads[0]
    assert_forms_agree(q, k, v, backend, mask=MASKS[mask](sequences, queries, keys), offset=offset)


@pytest.mark.parametrize("backend", ["fused", "tiled"])
def test_sinks_agree_and_learn(backend):
    q, k, v = qkv(2, heads=4, kv_heads=2)
    sinks = torch.randn(4, dtype=torch.float64, requires_grad=True)
    assert_forms_agree(q, k, v, backend, sinks=sinks, mask=ops.Causal())


def test_tiled_has_softcap_and_any_score():
    q, k, v = qkv(2)
    assert_forms_agree(q, k, v, "tiled", softcap=1.5, mask=ops.Causal())
    assert_forms_agree(q, k, v, "tiled", score=ops.dot)


@pytest.mark.parametrize("scale", [0.0, -1.0])
def test_a_scale_of_zero_or_less_leaves_the_mask_alone(scale):
    q, k, v = torch.randn(3, 1, 2, 5, 4)
    want = attend(q, k, v, mask=ops.Causal(), scale=scale, backend="reference")
    assert_close(attend(q, k, v, mask=ops.Causal(), scale=scale, backend="fused"), want)


def test_a_mask_for_the_last_axes_serves_any_number_before_them():
    q, k, v = qkv(2, 3, heads=4, queries=5, keys=5)
    for shape in ((5, 5), (1, 5, 5), (4, 5, 5), (3, 1, 5, 5), (2, 1, 1, 5, 5)):
        assert_forms_agree(q, k, v, "fused", mask=masks.DenseMask(torch.rand(shape) > 0.4))


def test_many_bands_are_one_map(monkeypatch):
    from regard.ops import tiling
    from regard.ops.attend import fused

    monkeypatch.setattr(tiling, "MAX_SCORES", 40)
    monkeypatch.setattr(fused, "MAX_MASK_ELEMENTS", 40)
    q, k, v = qkv(1, heads=2, queries=9, keys=9)
    for backend in ("fused", "tiled"):
        for mask in (ops.Local(1), ops.Causal() & ops.Local(3), ops.Chunked(2, 0)):
            assert_forms_agree(q, k, v, backend, mask=mask)


@given(queries=small, keys=small, head_dim=small)
def test_same_as_torch(queries, keys, head_dim):
    q, k, v = qkv(2, queries=queries, keys=keys, head_dim=head_dim, value=head_dim)
    theirs = F.scaled_dot_product_attention(q, k, v)
    for backend in ("reference", "tiled", "fused"):
        assert_close(attend(q, k, v, backend=backend)[0], theirs)


def test_bilinear_and_additive_scores_are_their_formulas():
    q, k, v = qkv(head_dim=3, value=2)
    w = torch.randn(3, 3, dtype=torch.float64)
    general, _ = attend(q, k, v, score=partial(ops.bilinear, w=w))
    assert_close(general, attend(q @ w, k, v, scale=1.0)[0])
    w_q, w_k, u = (torch.randn(*s, dtype=torch.float64) for s in ((3, 5), (3, 5), (5,)))
    added, _ = attend(q, k, v, score=partial(ops.additive, w_q=w_q, w_k=w_k, v=u))
    s = torch.stack([torch.tanh(q @ w_q + (kj @ w_k)[:, None]) @ u for kj in k.unbind(-2)], -1)
    assert_close(added, s.softmax(-1) @ v)


@pytest.mark.parametrize("backend", ["reference", "tiled", "fused"])
def test_gradients_by_finite_differences(backend):
    q, k, v = qkv(heads=2, kv_heads=1, queries=2, keys=3, head_dim=2, value=2)
    mask = masks.DenseMask(torch.tensor([[True, True, False], [True, True, True]]))
    torch.autograd.gradcheck(lambda *x: attend(*x, mask=mask, backend=backend), (q, k, v))


def test_learned_biases_get_their_gradient():
    q, k, v = qkv(heads=2)
    table = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    for backend in ("reference", "tiled", "auto"):
        torch.autograd.gradcheck(
            lambda t, backend=backend: attend(q, k, v, bias=ops.Toeplitz(t), backend=backend)[0],
            table,
        )


@pytest.mark.parametrize("backend", ["reference", "tiled", "fused"])
def test_bfloat16_stays_within_a_hundredth_of_float64(backend):
    q, k, v = (x.detach().bfloat16() for x in qkv(2, queries=33, keys=33, head_dim=16, value=16))
    want, want_lse = attend(
        q.double(), k.double(), v.double(), mask=ops.Causal(), backend="reference"
    )
    out, lse = attend(q, k, v, mask=ops.Causal(), backend=backend)
    assert out.dtype == torch.bfloat16
    assert (out - want).norm() / want.norm() < 1e-2
    assert (lse - want_lse).abs().max() < 1e-2


def test_dropout_keeps_the_mean_and_the_lse():
    q, k, v = qkv(heads=1, queries=1, keys=4, grad=False)
    clean, lse = attend(q, k, v)
    drawn = attend(
        q.expand(4000, -1, -1, -1),
        k.expand(4000, -1, -1, -1),
        v.expand(4000, -1, -1, -1),
        dropout=0.25,
    )
    assert_close(drawn[0].mean(0), clean, rtol=0, atol=0.1)
    assert len(drawn[0].unique(dim=0)) > 8  # of 16 choices of keys
    assert_close(drawn[1][0], lse)


# Errors


def test_nan_stays_visible():
    q, k, v = (x.detach() for x in qkv(heads=1))
    for x, rows in ((q, [2]), (k, range(6)), (v, range(6))):
        for backend in ("reference", "tiled", "fused"):
            kept = x[0, 2, 0].item()
            x[0, 2, 0] = torch.nan
            out, _ = attend(q, k, v, backend=backend)
            assert all(out[0, i].isnan().any() for i in rows), backend
            x[0, 2, 0] = kept


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": torch.zeros(2, 6, 5)}, "k: needs head_dim=4 as q has, got 5"),
        ({"k": torch.zeros(2, 7, 4)}, r"v: needs one value for each key, \(2, 7\), got \(2, 6\)"),
        ({"q": torch.zeros(3, 6, 4)}, "q: needs a multiple of the 2 heads of k, got 3"),
        ({"q": torch.zeros(6, 4)}, "k: needs as many axes as q"),
        ({"scale": torch.inf}, "scale: needs a finite number, got inf; try softargmax"),
        ({"softcap": 0.0}, "softcap: needs more than 0"),
        ({"sinks": torch.zeros(3)}, "sinks: needs one for each of 2 heads"),
        ({"dropout": 1.0}, "dropout: needs at least 0 and less than 1, got 1.0"),
        ({"offset": -1}, "offset: needs 0 or more, got -1"),
        ({"score": ops.dot, "scale": 1.0}, "scale: needs None beside score"),
        ({"mask": ops.Padding(torch.tensor([1, 2, 3]))}, "lengths: needs one for each of 2"),
        ({"mask": torch.ones(3, 3, dtype=torch.bool)}, "mask: needs at least 6 queries by 6 keys"),
        ({"bias": torch.ones(2, 2)}, "bias: needs at least 6 queries by 6 keys"),
        ({"bias": ops.ALiBi(torch.ones(3))}, "slopes: needs one for each of 2 heads, got 3"),
    ],
)
def test_bad_input_raises_with_its_numbers(change, message):
    call = {"q": torch.zeros(2, 6, 4), "k": torch.zeros(2, 6, 4), "v": torch.zeros(2, 6, 4)}
    with pytest.raises(ShapeError, match=message):
        attend(**(call | change))


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"backend": "flex"}, "flex cannot run here, flex_attention is fast only compiled"),
        ({"backend": "fused", "softcap": 1.0}, "no softcap; try backend='auto'"),
        ({"backend": "fused", "score": ops.dot}, "only the dot product"),
        ({"backend": "fused", "dropout": 0.1}, "the CPU kernel has no dropout"),
    ],
)
def test_a_backend_requested_by_name_runs_or_raises(terms, message):
    with pytest.raises(BackendError, match=message):
        attend(*qkv(), **terms)


@pytest.mark.usefixtures("users_view")
def test_an_unknown_backend_raises():
    with pytest.raises(BackendError, match="got 'flash'"):
        attend(*qkv(), backend="flash")
