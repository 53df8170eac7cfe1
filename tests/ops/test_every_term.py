"""Every term of a score, in every op and backend, against a map written out in float64.

The map is computed here from plain matrices and never through `Terms`: backends that all forgot one
term would agree with each other.
"""

from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from regard import ops
from regard.errors import ShapeError
from regard.ops import (
    attend,
    attention_weights,
    biases,
    influence,
    influence_window,
    masks,
    survey,
    tiling,
    window,
)
from regard.ops.attend import tiled
from regard.ops.term_registry import TERMS
from regard.ops.terms import Terms

B, H, KV, Q, K, FEAT = 2, 4, 2, 7, 9, 3
AHEAD = 2  # the offset of every case: queries stand at 2 … 8
I, J = torch.arange(Q)[:, None] + AHEAD, torch.arange(K)
LENGTHS, SKIP = torch.tensor([9, 5]), torch.tensor([2, 0])
IDS = torch.tensor([[0] * 4 + [1] * 8, [0] * 7 + [1] * 5])
NUMBERS = torch.Generator().manual_seed(7)


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=NUMBERS)


def pick(table: Tensor) -> Tensor:
    """table[..., j - i], distances clipped at its radius: (head, query, key)."""
    radius = table.shape[-1] // 2
    return table[..., (J - I).clamp(-radius, radius) + radius]


def buckets() -> Tensor:
    # 8 buckets, both sides: 0 and 1 alone, 2-5 and 6-15 together; those ahead are 4 … 7
    far = (J - I).abs()
    return (J > I) * 4 + (far > 0).int() + (far > 1) + (far > 5)


SLOPES, BIAS, SINKS = numbers(H).abs(), numbers(B, H, Q, K), numbers(H)
TABLE, BUCKETS, RELATIVE = numbers(H, 5), numbers(8, H), numbers(5, FEAT)
ALLOWED = numbers(H, Q, K) > -0.5
CAUSAL, NEAR, REAL = J <= I, (I - J).abs() <= 2, (LENGTHS[:, None] > J) & (SKIP[:, None] <= J)
ALIBI = -SLOPES[:, None, None] * (I - J).abs()

# name: (the term, as a caller gives it, what it does to the map)
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "scale": ("scale", {"scale": 1.7}, {"scale": 1.7}),
    "score": ("score", {"score": ops.dot}, {"scale": 1.0}),
    "softcap": ("softcap", {"softcap": 0.8}, {"softcap": 0.8}),
    "sinks": ("sinks", {"sinks": SINKS}, {"sinks": SINKS}),
    "offset": ("offset", {"mask": ops.Causal(), "offset": AHEAD}, {"allowed": CAUSAL}),
    "Causal": ("mask", {"mask": ops.Causal()}, {"allowed": CAUSAL}),
    "Local": ("mask", {"mask": ops.Local(2)}, {"allowed": NEAR}),
    "Chunked": (
        "mask",
        {"mask": ops.Chunked(3, left_chunks=1)},
        {"allowed": (J // 3 <= I // 3) & (J // 3 >= I // 3 - 1)},
    ),
    "Padding": ("mask", {"mask": ops.Padding(LENGTHS, SKIP)}, {"allowed": REAL[:, None, None]}),
    "Documents": (
        "mask",
        {"mask": ops.Documents(IDS)},
        {"allowed": (IDS[:, I] == IDS[:, J][:, None])[:, None]},
    ),
    "Dense mask": ("mask", {"mask": masks.DenseMask(ALLOWED)}, {"allowed": ALLOWED}),
    "Both": ("mask", {"mask": ops.Causal() & ops.Local(2)}, {"allowed": CAUSAL & NEAR}),
    "Either": ("mask", {"mask": ops.Causal() | ops.Local(2)}, {"allowed": CAUSAL | NEAR}),
    "ALiBi": ("bias", {"bias": ops.ALiBi(SLOPES)}, {"added": ALIBI}),
    "Toeplitz": ("bias", {"bias": ops.Toeplitz(TABLE)}, {"added": pick(TABLE)}),
    "Buckets": (
        "bias",
        {"bias": ops.Buckets(BUCKETS, True, 16)},
        {"added": BUCKETS[buckets()].permute(2, 0, 1)},
    ),
    "Relative": ("bias", {"bias": ops.RelativeKeys(RELATIVE)}, {"asked": RELATIVE}),
    "Dense bias": ("bias", {"bias": biases.DenseBias(BIAS)}, {"added": BIAS}),
    "Sum": (
        "bias",
        {"bias": ops.ALiBi(SLOPES) + ops.Toeplitz(TABLE)},
        {"added": ALIBI + pick(TABLE)},
    ),
    "together": (
        "softcap",
        {"scale": 1.7, "softcap": 0.8, "sinks": SINKS, "bias": ops.ALiBi(SLOPES)}
        | {"mask": ops.Causal()},
        {"scale": 1.7, "softcap": 0.8, "sinks": SINKS, "added": ALIBI, "allowed": CAUSAL},
    ),
}
each_case = pytest.mark.parametrize("name", CASES)
NO_KERNEL = {"score", "Relative", "Either"}  # the Triton kernels refuse these
NO_FUSED = {"score", "softcap", "together"}


def draw() -> tuple[Tensor, Tensor, Tensor]:
    NUMBERS.manual_seed(7)
    return numbers(B, H, Q, FEAT), 0.7 * numbers(B, KV, K, FEAT), numbers(B, KV, K, 2)


def exp_scores(
    q: Tensor, k: Tensor, *, scale: float = FEAT**-0.5, softcap: float | None = None,
    added: Tensor | None = None, asked: Tensor | None = None, allowed: Tensor | None = None,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """exp(s_ij), and what a sink adds to each row's sum."""
    s = scale * torch.einsum("bhif,bhjf->bhij", q, k.repeat_interleave(H // KV, 1))
    s = s if softcap is None else softcap * torch.tanh(s / softcap)
    s = s if added is None else s + added
    s = s if asked is None else s + scale * torch.einsum("bhif,fij->bhij", q, pick(asked.mT))
    e = s.exp() if allowed is None else s.exp() * allowed
    return e, torch.zeros(H, 1).double() if sinks is None else sinks.exp()[:, None]


def case(name: str) -> tuple[tuple[Tensor, Tensor, Tensor], dict[str, Any], Tensor, Tensor, Tensor]:
    """q, k, v; the terms; the map, its output and log-sum-exp."""
    q, k, v = draw()
    e, sink = exp_scores(q, k, **CASES[name][2])
    total = e.sum(-1) + sink
    w = e / total[..., None]
    terms = {"offset": AHEAD} | CASES[name][1]
    return (q, k, v), terms, w, w @ v.repeat_interleave(H // KV, 1), total.log()


def removed(name: str, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> Tensor:
    """|change of each output| when one key after another is taken away: (*, query, key)."""
    e, sink = exp_scores(q, k, **CASES[name][2])
    changes = []
    for j in range(K):
        left = e * (torch.arange(K) != j)
        total = left.sum(-1, keepdim=True) + sink[..., None]
        w = torch.where(total > 0, left / total, 0)
        changes.append((w @ v.repeat_interleave(H // KV, 1) - out).norm(dim=-1))
    return torch.stack(changes, -1)


def test_no_term_is_without_a_case():
    assert {term for term, _, _ in CASES.values()} == {f.name for f in fields(Terms)}
    used = {type(x) for _, given, _ in CASES.values() for x in given.values()}
    assert {c for c in TERMS if c.__module__ in (masks.__name__, biases.__name__)} <= used


@each_case
def test_each_case_would_notice_its_term_dropped(name):
    (q, k, v), terms, w, _, _ = case(name)
    dropped = {key: x for key, x in terms.items() if key != CASES[name][0]}
    assert (attention_weights(q, k, **dropped) - w).abs().max() > 0.02


@each_case
def test_attention_is_that_of_the_map(name, monkeypatch):
    monkeypatch.setattr(tiled.row_bands, "__defaults__", (100,))
    (q, k, v), terms, w, out, lse = case(name)
    assert_close(attention_weights(q, k, **terms), w)
    for backend in ("auto", "reference", "tiled", *(["fused"] if name not in NO_FUSED else [])):
        assert_close(attend(q, k, v, backend=backend, **terms), (out, lse))


@each_case
def test_windows_are_cut_from_the_map(name, monkeypatch):
    monkeypatch.setattr(tiled.row_bands, "__defaults__", (100,))
    (q, k, _), terms, w, _, lse = case(name)
    assert_close(window(q, k, lse, **terms), w)
    part = {"rows": slice(2, 6), "keys": slice(1, 7)}
    assert_close(window(q, k, lse, **part, **terms), w[..., 2:6, 1:7])
    cells = w[..., 2:6, 1:7].unflatten(-1, (2, 3)).unflatten(-3, (2, 2))
    for reduce, want in (
        ("sum", cells.sum((-3, -1))),
        ("mean", cells.mean((-3, -1))),
        ("max", cells.amax((-3, -1))),
    ):
        assert_close(window(q, k, lse, pool=(2, 3), reduce=reduce, **part, **terms), want)


@pytest.mark.usefixtures("users_view")
def test_sinks_reach_each_op():
    """They act by the log-sum-exp alone; what an op does with them itself is to check them."""
    q, k, v = draw()
    out, lse = attend(q, k, v)
    sinks = torch.zeros(H + 1)
    for op, given in (
        (attend, (q, k, v)),
        (attention_weights, (q, k)),
        (window, (q, k, lse)),
        (survey, (q, k, lse)),
        (influence, (q, k, v, out, lse)),
        (influence_window, (q, k, v, out, lse)),
    ):
        with pytest.raises(ShapeError, match="sinks: needs one for each of 4 heads"):
            op(*given, sinks=sinks)


def counted(w: Tensor, name: str) -> dict[str, Tensor]:
    """The statistics of `COUNTED` from the map; first_share counts from a sequence's start."""
    first = SKIP[:, None, None, None] if name == "Padding" else 0
    return {
        "entropy": -torch.special.xlogy(w, w).sum(-1),
        "received": w.sum(-2),
        "peak": w.amax(-1),
        "first_share": (w * ((first <= J) & (first + 2 > J))).sum(-1),
        "mean_distance": (w * (I - J).abs()).sum(-1),
        "local_share": (w * ((I - J).abs() <= 1)).sum(-1),
    }


COUNTED = {
    "statistics": ("entropy", "received", "peak", "first_share", "mean_distance", "local_share"),
    "first_keys": 2,
    "radius": 1,
}


def assert_found(found: Any, want: dict[str, Tensor], **tolerance: float) -> None:
    for name, x in want.items():
        got = getattr(found, name).double()
        assert_close(got, x, msg=lambda m, n=name: f"{n}: {m}", **tolerance)


@each_case
@pytest.mark.parametrize("backend", ["reference", "tiled"])
def test_surveys_count_the_map(name, backend, monkeypatch):
    monkeypatch.setattr(tiling, "CPU_TILE", tiling.TileSize(64, 2, 4))
    monkeypatch.setattr(tiling, "CACHE_TILE", tiling.TileSize(16, 2, 3))
    (q, k, _), terms, w, _, lse = case(name)
    assert_found(survey(q, k, lse, backend=backend, **COUNTED, **terms), counted(w, name))


@each_case
def test_influence_is_what_removal_does_to_the_map(name, monkeypatch):
    monkeypatch.setattr(tiling, "CPU_TILE", tiling.TileSize(64, 2, 4))
    (q, k, v), terms, _, out, lse = case(name)
    want = removed(name, q, k, v, out)
    given = (q, k, v, out, lse)
    assert_close(influence_window(*given, **terms), want)
    part = {"rows": slice(2, 6), "keys": slice(1, 7)}
    assert_close(influence_window(*given, **part, **terms), want[..., 2:6, 1:7])
    for backend in ("reference", "tiled"):
        found = influence(*given, backend=backend, **terms)
        assert_found(found, {"effect_on_query": want.sum(-1), "effect_of_key": want.sum(-2)})


# one case that has every term is quick enough for each run
KERNELS = [
    name if name == "together" else pytest.param(name, marks=pytest.mark.slow)
    for name in CASES
    if name not in NO_KERNEL
]


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_count_the_map(name):
    if not pytest.importorskip("regard.ops.kernels.terms").INTERPRETED:
        pytest.skip("tests on a GPU are in test_survey_gpu.py")
    (q, k, v), terms, w, out, lse = case(name)
    removal = removed(name, q, k, v, out)
    q, k, v, out, lse = (x.float() for x in (q, k, v, out, lse))
    found = survey(q, k, lse, backend="kernel", **COUNTED, **terms)
    assert_found(found, counted(w, name), atol=1e-5, rtol=1e-4)
    found = influence(q, k, v, out, lse, backend="kernel", **terms)
    want = {"effect_on_query": removal.sum(-1), "effect_of_key": removal.sum(-2)}
    assert_found(found, want, atol=1e-4, rtol=1e-3)
