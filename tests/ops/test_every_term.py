"""Every term of a score, in every op and backend, against a map written out in float64.

The map is computed here from plain matrices and never through `Terms`: backends that all forgot one
term would agree with each other.
"""

from dataclasses import fields
from typing import Any

import pytest
import torch
from term_cases import (
    AHEAD,
    CASES,
    EXAMPLES,
    FEAT,
    KV,
    NO_FUSED,
    NO_KERNEL,
    SKIP,
    H,
    I,
    J,
    K,
    draw,
    pick,
)
from torch import Tensor
from torch.testing import assert_close

from regard.errors import ShapeError
from regard.inspection.sites.site import select_head
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
from regard.ops.term_registry import TERMS
from regard.ops.terms import Terms, make_terms, weights_from_scores

each_case = pytest.mark.parametrize("name", CASES)


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
    ours = {c for c in TERMS if c.__module__ in (masks.__name__, biases.__name__)}
    assert ours - set(EXAMPLES) == set(), "add a case to tests/term_cases.py"


@each_case
def test_each_case_would_notice_its_term_dropped(name):
    (q, k, v), terms, w, _, _ = case(name)
    dropped = {key: x for key, x in terms.items() if key != CASES[name][0]}
    assert (attention_weights(q, k, **dropped) - w).abs().max() > 0.02


@each_case
def test_attention_is_that_of_the_map(name, monkeypatch):
    monkeypatch.setattr(tiling, "MAX_SCORES", 100)
    (q, k, v), terms, w, out, lse = case(name)
    assert_close(attention_weights(q, k, **terms), w)
    for backend in ("auto", "reference", "tiled", *(["fused"] if name not in NO_FUSED else [])):
        assert_close(attend(q, k, v, backend=backend, **terms), (out, lse))


@each_case
def test_windows_are_cut_from_the_map(name, monkeypatch):
    monkeypatch.setattr(tiling, "MAX_SCORES", 100)
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


@each_case
def test_the_terms_of_one_head_give_the_map_of_that_head(name):
    (q, k, _), terms, w, _, lse = case(name)
    k = k.repeat_interleave(H // KV, 1)
    for head in range(H):
        part = slice(head, head + 1)
        terms_of_head = select_head(make_terms(q, k, **terms), head)
        assert terms_of_head is not None
        scores = terms_of_head.score_tile(q[:, part], k[:, part])
        assert_close(weights_from_scores(scores, lse[:, part]), w[:, part])


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
    if name == "Documents":  # of the query's own
        first = CASES[name][2]["allowed"].float().argmax(-1, keepdim=True)
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


@each_case
def test_kernels_take_the_term_or_are_known_to_refuse_it(name):
    kernels = pytest.importorskip("regard.ops.kernels.terms")
    (q, k, _), terms, _, _, _ = case(name)
    found = kernels.make_kernel_terms(q, k, make_terms(q, k, **terms))
    assert isinstance(found, str) == (name in NO_KERNEL), found


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
