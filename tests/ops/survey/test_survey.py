import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from regard import ops
from regard.errors import BackendError, ShapeError
from regard.ops import attend, attention_weights, masks, survey, tiling
from regard.ops.survey.statistics import (
    ALL_STATISTICS,
    DEFAULT_STATISTICS,
    DIFFERENTIABLE_STATISTICS,
    STATISTICS,
    WeightTile,
    make_survey_options,
)
from regard.ops.terms import make_terms

small = st.integers(1, 9)

TERMS = {
    "plain": lambda b, h, q, k: {},
    "causal": lambda b, h, q, k: {"mask": ops.Causal()},
    "window": lambda b, h, q, k: {"mask": ops.Causal() & ops.Local(3)},
    "padding": lambda b, h, q, k: {"mask": ops.Padding(torch.arange(b) % (k + 1))},
    "dense": lambda b, h, q, k: {"mask": masks.DenseMask(torch.rand(q, k) > 0.4)},
    "alibi": lambda b, h, q, k: {"bias": ops.ALiBi(ops.alibi_slopes(h).double())},
    "softcap": lambda b, h, q, k: {"softcap": 1.0, "mask": ops.Causal()},
    "sinks": lambda b, h, q, k: {"sinks": torch.randn(h, dtype=torch.float64)},
    "offset": lambda b, h, q, k: {"mask": ops.Causal(), "offset": 2},
    "score": lambda b, h, q, k: {"score": ops.dot},
}


def draw(batch=2, heads=4, kv_heads=2, queries=7, keys=7, head_dim=3):
    q = torch.randn(batch, heads, queries, head_dim, dtype=torch.float64, requires_grad=True)
    k = torch.randn(batch, kv_heads, keys, head_dim, dtype=torch.float64, requires_grad=True)
    return q, k, k


# Worked numbers


def test_a_uniform_map_has_the_numbers_one_can_count():
    q = k = torch.zeros(4, 2, dtype=torch.float64)
    _, lse = attend(q, k, k, mask=ops.Causal())
    s = survey(
        q,
        k,
        lse,
        statistics=ALL_STATISTICS,
        first_keys=1,
        radius=1,
        top_k=2,
        pooled_size=2,
        mask=ops.Causal(),
    )
    n = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    assert_close(s.entropy, n.log())
    assert_close(s.peak, 1 / n)
    assert s.peak_key.tolist() == [0, 0, 0, 0]
    assert_close(s.mean_distance, torch.tensor([0, 0.5, 1.0, 1.5]).double())
    assert_close(s.mean_offset, -s.mean_distance)
    assert_close(s.self_share, 1 / n)
    assert_close(s.previous_share, torch.tensor([0, 1 / 2, 1 / 3, 1 / 4]).double())
    assert_close(s.first_share, 1 / n)
    assert_close(s.local_share, torch.tensor([1, 1, 2 / 3, 2 / 4]).double())
    assert_close(s.received, torch.tensor([25 / 12, 13 / 12, 7 / 12, 1 / 4]).double())
    assert_close(s.top_weights[2], torch.tensor([1 / 3, 1 / 3]).double())
    assert s.max_score == 0
    assert_close(s.distance_histogram, torch.tensor([25 / 12, 13 / 12, 5 / 6]).double())
    assert_close(s.pooled_map, torch.tensor([[2.0, 0.0], [7 / 6, 5 / 6]]).double())


def test_a_row_without_visible_keys_adds_nothing():
    q, k, v = draw(queries=2, keys=2)
    mask = masks.DenseMask(torch.tensor([[False, False], [True, True]]))
    _, lse = attend(q, k, v, mask=mask)
    for backend in ("reference", "tiled"):
        s = survey(q, k, lse, statistics=ALL_STATISTICS, mask=mask, backend=backend)
        for name, record in STATISTICS.items():
            if record.axes[0] == "query":
                assert (getattr(s, name)[:, :, 0] == record.initial).all(), name
        assert all(not getattr(s, name).isnan().any() for name in ALL_STATISTICS)


# Properties


@given(queries=small, keys=small)
def test_all_that_is_given_is_received(queries, keys):
    q, k, v = draw(queries=queries, keys=keys)
    s = survey(
        q,
        k,
        attend(q, k, v)[1],
        statistics=["received", "distance_histogram", "received_by_distance", "pooled_map"],
    )
    for total in (s.received.sum(-1), s.distance_histogram.sum(-1), s.pooled_map.sum((-1, -2))):
        assert_close(total, torch.full((2, 4), float(queries), dtype=torch.float64))
    assert_close(s.received_by_distance.sum(-1), s.received)


# Parity


@pytest.mark.parametrize(
    "asked",
    [ALL_STATISTICS, (*DEFAULT_STATISTICS, "max_score", "pooled_map"), ("peak",), ("first_share",)],
)
@pytest.mark.parametrize("kind", TERMS)
@pytest.mark.parametrize("sizes", [(7, 7), (3, 11), (1, 1), (9, 2)])
def test_tiled_is_the_reference(kind, sizes, asked, monkeypatch):
    monkeypatch.setattr(tiling, "CPU_TILE", tiling.TileSize(64, 2, 4))
    monkeypatch.setattr(tiling, "CACHE_TILE", tiling.TileSize(16, 2, 3))
    q, k, v = draw(queries=sizes[0], keys=sizes[1])
    terms = TERMS[kind](2, 4, *sizes)
    _, lse = attend(q, k, v, **terms)
    ask = {"statistics": asked, "first_keys": 2, "radius": 2, "top_k": 3, "pooled_size": (3, 2)}
    want = survey(q, k, lse, backend="reference", **ask, **terms)
    got = survey(q, k, lse, backend="tiled", **ask, **terms)
    for name in asked:
        assert_close(getattr(got, name), getattr(want, name), msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("mask", [None, ops.Causal(), ops.Causal() & ops.Local(300)])
@pytest.mark.parametrize("sharp", [0.0, 1.0, 30.0])
def test_flat_and_peaked_maps_are_counted_alike_well(mask, sharp):
    q, k, v = (x.detach().float() for x in draw(1, 4, 2, queries=900, keys=900, head_dim=16))
    q = sharp * q
    exact = attend(q.double(), k.double(), v.double(), mask=mask)[1]
    want = survey(q.double(), k.double(), exact, mask=mask, backend="reference")
    got = survey(q, k, exact.float(), mask=mask, backend="tiled")
    for name in set(DEFAULT_STATISTICS) & set(DIFFERENTIABLE_STATISTICS):
        a, b = getattr(got, name), getattr(want, name)
        assert (a - b).norm() / b.norm() < 2e-5, name
    off = want.peak - attention_weights(q.double(), k.double(), mask=mask).gather(
        -1, got.peak_key[..., None]
    ).squeeze(-1)
    assert off.max() < 1e-5


@pytest.mark.parametrize("asked", [DEFAULT_STATISTICS, ("peak_key",)])
def test_of_equal_weights_the_first_key_is_the_peak(asked, monkeypatch):
    monkeypatch.setattr(tiling, "CACHE_TILE", tiling.TileSize(64, 4, 8))
    q = k = torch.zeros(1, 2, 40, 3)
    padded = ops.Padding(torch.tensor([9]), left_padding=torch.tensor([3]))
    for mask, first in ((None, 0), (ops.Causal(), 0), (padded, 3)):
        _, lse = attend(q, k, k, mask=mask)
        assert (survey(q, k, lse, statistics=asked, mask=mask).peak_key == first).all()


def test_a_key_that_a_bias_hides_has_no_entropy():
    q, k, v = draw()
    bias = torch.zeros(7, 7, dtype=torch.float64)
    bias[:, 2] = -torch.inf
    _, lse = attend(q, k, v, bias=bias)
    want = survey(q, k, lse, statistics=["entropy"], bias=bias, backend="reference")
    got = survey(q, k, lse, statistics=["entropy"], bias=bias, backend="tiled")
    assert_close(got.entropy, want.entropy)


def test_statistics_match_the_map():
    q, k, v = draw()
    w = attention_weights(q, k, mask=ops.Causal())
    _, lse = attend(q, k, v, mask=ops.Causal())
    s = survey(q, k, lse, mask=ops.Causal())
    assert_close(s.entropy, -(w * w.clamp(min=1e-300).log()).sum(-1))
    assert_close(s.received, w.sum(-2))
    assert_close(s.peak, w.amax(-1))
    assert (s.peak_key == w.argmax(-1)).all()


@pytest.mark.parametrize("kind", TERMS)
def test_gradients_are_those_of_the_map(kind, monkeypatch):
    monkeypatch.setattr(tiling, "MAX_SCORES", 80)  # bands of two rows
    q, k, v = draw(queries=5, keys=5)
    terms = TERMS[kind](2, 4, 5, 5)

    def loss(by_map):
        _, lse = attend(q, k, v, backend="reference", **terms)
        if by_map:
            made = make_terms(q, k, **terms)
            options = make_survey_options(DIFFERENTIABLE_STATISTICS, 4, 8, 8, 2)
            tile = WeightTile(made.score_tile(q, k), lse, made.grid(q, k), options)
            found = {name: STATISTICS[name].formula(tile) for name in DIFFERENTIABLE_STATISTICS}
        else:
            found = vars(survey(q, k, lse, statistics=DIFFERENTIABLE_STATISTICS, **terms))
        torch.manual_seed(1)
        return sum((found[n] * torch.randn_like(found[n])).sum() for n in DIFFERENTIABLE_STATISTICS)

    want = torch.autograd.grad(loss(True), (q, k))
    got = torch.autograd.grad(loss(False), (q, k))
    assert_close(got, want)
    assert not any(g.isnan().any() for g in got)


def test_an_entropy_penalty_by_finite_differences():
    q, k, _ = draw(batch=1, heads=2, kv_heads=1, queries=3, keys=3, head_dim=2)

    def entropy(q, k):
        _, lse = attend(q, k, k, mask=ops.Causal())
        s = survey(q, k, lse, statistics=("entropy", "received", "peak"), mask=ops.Causal())
        return s.entropy, s.received, s.peak

    torch.autograd.gradcheck(entropy, (q, k))


def test_bfloat16_is_counted_in_float32():
    q, k, v = (x.detach().bfloat16() for x in draw(queries=65, keys=65, head_dim=16))
    exact = attend(q.double(), k.double(), v.double(), mask=ops.Causal())[1]
    want = survey(q.double(), k.double(), exact, mask=ops.Causal(), backend="reference")
    got = survey(q, k, exact.float(), mask=ops.Causal())
    for name in set(DEFAULT_STATISTICS) & set(DIFFERENTIABLE_STATISTICS):
        a, b = getattr(got, name), getattr(want, name)
        assert (a - b).norm() / b.norm() < 1e-4, name


@pytest.mark.slow
def test_memory_is_linear_in_n():
    import resource

    q = k = torch.randn(1, 4, 16384, 64)
    _, lse = attend(q, k, k, mask=ops.Causal())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    survey(q, k, lse, mask=ops.Causal())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kilobytes


# Errors


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"statistics": ["entropi"]}, "statistics: needs names of entropy, peak, .* got 'entropi'"),
        ({"lse": torch.zeros(2, 4, 6)}, r"lse: needs one for each query, \(2, 4, 7\), got"),
        ({"first_keys": 0}, "first_keys: needs 1 or more, got 0"),
        ({"pooled_size": 0}, "pooled_size: needs 1 or more"),
    ],
)
def test_bad_input_raises_with_its_numbers(change, message):
    q, k, v = draw()
    call = {"q": q, "k": k, "lse": attend(q, k, v)[1]}
    with pytest.raises(ShapeError, match=message):
        survey(**(call | change))


@pytest.mark.usefixtures("users_view")
def test_an_unknown_backend_raises():
    q, k, v = draw()
    with pytest.raises(BackendError, match="got 'fast'"):
        survey(q, k, attend(q, k, v)[1], backend="fast")
