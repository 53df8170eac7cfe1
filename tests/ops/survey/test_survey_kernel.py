import pytest
import torch

from regard import ops
from regard.ops import attend, biases, masks, survey
from regard.ops.survey.statistics import KERNEL_STATISTICS

kernel = pytest.importorskip("regard.ops.survey.kernel")

TERMS = {
    "plain": lambda b, h, q, k: {},
    "causal": lambda b, h, q, k: {"mask": ops.Causal()},
    "window": lambda b, h, q, k: {"mask": ops.Causal() & ops.Local(20)},
    "local": lambda b, h, q, k: {"mask": ops.Local(9)},
    "padding": lambda b, h, q, k: {"mask": ops.Padding(torch.arange(b) * k // b)},
    "left padding": lambda b, h, q, k: {
        "mask": ops.Causal() & ops.Padding(torch.full((b,), k), left_padding=torch.arange(b) * 3)
    },
    "chunked": lambda b, h, q, k: {"mask": ops.Chunked(5, left_chunks=2)},
    "documents": lambda b, h, q, k: {
        "mask": ops.Causal() & ops.Documents((torch.arange(q + k) // 7).expand(b, -1))
    },
    "dense": lambda b, h, q, k: {"mask": masks.DenseMask(torch.rand(h, q, k) > 0.4)},
    "alibi": lambda b, h, q, k: {"bias": ops.ALiBi(ops.alibi_slopes(h)), "mask": ops.Causal()},
    "toeplitz": lambda b, h, q, k: {"bias": ops.Toeplitz(torch.randn(h, 9))},
    "buckets": lambda b, h, q, k: {"bias": ops.Buckets(torch.randn(8, h), True, 16)},
    "dense bias": lambda b, h, q, k: {"bias": biases.DenseBias(torch.randn(q, k))},
    "softcap": lambda b, h, q, k: {"softcap": 1.0, "mask": ops.Causal()},
    "sinks": lambda b, h, q, k: {"sinks": torch.randn(h)},
    "offset": lambda b, h, q, k: {"mask": ops.Causal(), "offset": 13},
}


def draw(queries, keys, head_dim, dtype=torch.float32):
    q = torch.randn(2, 2, queries, head_dim, dtype=dtype)
    k = torch.randn(2, 1, keys, head_dim, dtype=dtype)
    return q, k


def assert_same(q, k, terms, ask=None, tolerance=1e-4):
    q64, k64 = q.double(), k.double()
    _, lse = attend(q64, k64, k64, **terms)
    ask = {"statistics": KERNEL_STATISTICS if ask is None else ask, "first_keys": 3, "radius": 4}
    want = survey(q64, k64, lse, backend="reference", **ask, **terms)
    got = survey(q, k, lse.float(), backend="kernel", **ask, **terms)
    weights = ops.window(q64, k64, lse, **terms)
    for name in ask["statistics"]:
        a, b = getattr(got, name), getattr(want, name)
        if name == "peak_key":  # of nearly equal weights any may win
            none = b == -1
            assert (a[none] == -1).all()
            at = weights.gather(-1, a.clamp(min=0)[..., None])[..., 0]
            a, b = at[~none], want.peak[~none]
        assert (a.isfinite() == b.isfinite()).all(), name
        a, b = a[b.isfinite()], b[b.isfinite()]
        assert (a - b).norm() <= tolerance * b.norm() + 1e-6, name


# every term in one case is in test_every_term.py; these are what else a kernel does on its own
QUICK = ("plain", "causal", "left padding", "documents", "alibi", "softcap", "offset")
EACH = [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in TERMS]


@pytest.mark.parametrize("kind", EACH)
def test_kernel_is_the_reference(kind):
    q, k = draw(33, 40, head_dim=8)
    assert_same(q, k, TERMS[kind](2, 2, 33, 40))


@pytest.mark.slow
@pytest.mark.parametrize("kind", TERMS)
@pytest.mark.parametrize("sizes", [(64, 64), (80, 200), (130, 64), (97, 33)])
def test_kernel_is_the_reference_over_many_tiles(kind, sizes):
    q, k = draw(*sizes, head_dim=24)
    assert_same(q, k, TERMS[kind](2, 2, *sizes))


@pytest.mark.parametrize(
    ("sizes", "head_dim"),
    [((1, 1), 64), ((1, 65), 1), ((40, 3), 17), ((20, 40), 320), ((9, 33), 512)],
)
def test_kernel_at_odd_sizes(sizes, head_dim):
    q, k = draw(*sizes, head_dim=head_dim)
    assert_same(q, k, {})
    assert_same(q, k, {"mask": ops.Causal(), "offset": sizes[1] // 2})


@pytest.mark.parametrize(
    "ask", [["entropy"], ["received"], ["peak_key"], ["local_share", "mean_distance"]]
)
def test_kernel_computes_only_what_is_requested(ask):
    q, k = draw(20, 20, 8)
    found = survey(q, k, attend(q, k, k)[1], statistics=ask, backend="kernel")
    assert {n for n, x in vars(found).items() if x is not None} == set(ask)


def test_kernel_takes_any_leading_axes_and_strides():
    q = torch.randn(20, 4, 8).transpose(0, 1)
    k = torch.randn(20, 4, 8).transpose(0, 1)
    _, lse = attend(q, k, k)
    results = [
        survey(q, k, lse, backend=x, statistics=["received"]).received for x in ("kernel", "tiled")
    ]
    torch.testing.assert_close(*results)


def test_kernel_keeps_half_precision_within_a_ten_thousandth():
    q, k = draw(48, 48, 16, torch.float16)  # Triton's interpreter has no bfloat16 product
    assert_same(q, k, {"mask": ops.Causal()})


def test_what_the_kernel_cannot_compute_raises():
    from regard.errors import BackendError

    q, k = draw(4, 4, 8)
    _, lse = attend(q, k, k)
    for change, message in (
        ({"statistics": ["top_weights"]}, "does not compute top"),
        ({"score": ops.dot}, "only the dot product"),
        ({"mask": ops.Causal() | ops.Local(1)}, "Either"),
        ({"bias": ops.RelativeKeys(torch.zeros(3, 8))}, "Relative"),
    ):
        with pytest.raises(BackendError, match=message):
            survey(q, k, lse, backend="kernel", **change)
