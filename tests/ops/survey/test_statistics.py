"""Every statistic: each backend agrees with the reference formula of its record."""

from dataclasses import fields, replace

import pytest
import torch
from torch.testing import assert_close

from regard import ops
from regard.ops import attend, survey, tiling
from regard.ops.survey import tiled
from regard.ops.survey.statistics import (
    DEFAULT_STATISTICS,
    DIFFERENTIABLE_STATISTICS,
    STATISTICS,
    Survey,
    WeightTile,
    make_survey_options,
)
from regard.ops.terms import make_terms

each_statistic = pytest.mark.parametrize("name", STATISTICS)
OPTIONS = {"first_keys": 2, "radius": 2, "top_k": 3, "pooled_size": (3, 2)}
TERMS = {"mask": ops.Causal(), "offset": 2}


def draw(queries=7, keys=9):
    q = torch.randn(2, 4, queries, 3, dtype=torch.float64, requires_grad=True)
    k = torch.randn(2, 2, keys, 3, dtype=torch.float64, requires_grad=True)
    return q, k, attend(q, k, k, **TERMS)[1]


def by_formula(name, q, k, lse):
    terms = make_terms(q, k, **TERMS)
    options = make_survey_options([name], **OPTIONS)
    return STATISTICS[name].formula(
        WeightTile(terms.score_tile(q, k), lse, terms.grid(q, k), options)
    )


def test_every_field_of_a_survey_has_a_record():
    assert list(STATISTICS) == [f.name for f in fields(Survey)]
    assert all(record.meaning and record.name == name for name, record in STATISTICS.items())
    assert set(DEFAULT_STATISTICS) < set(STATISTICS)


@each_statistic
def test_its_shape_is_that_of_its_axes(name):
    q, k, lse = draw()
    sizes = {"query": 7, "key": 9, "top": 3, "row": 3, "column": 2, "bin": 5}
    want = (2, 4, *(sizes[axis] for axis in STATISTICS[name].axes if axis != "map"))
    assert getattr(survey(q, k, lse, statistics=name, **OPTIONS, **TERMS), name).shape == want


@each_statistic
@pytest.mark.parametrize("backend", ["reference", "tiled"])
def test_each_backend_is_the_formula(name, backend, monkeypatch):
    monkeypatch.setattr(tiling, "CPU_TILE", tiling.TileSize(64, 2, 4))
    monkeypatch.setattr(tiling, "CACHE_TILE", tiling.TileSize(16, 2, 3))
    q, k, lse = draw()
    result = survey(q, k, lse, statistics=[name], backend=backend, **OPTIONS, **TERMS)
    assert_close(getattr(result, name).detach(), by_formula(name, q, k, lse).detach())


@each_statistic
def test_the_fast_path_takes_the_statistics_of_its_records(name, monkeypatch):
    monkeypatch.setattr(tiling, "CACHE_TILE", tiling.TileSize(16, 2, 3))
    q, k, lse = draw()
    terms, options = make_terms(q, k, **TERMS), make_survey_options([name], **OPTIONS)
    takes = tiled.can_use_fast_path(q, k, terms, options)
    assert takes == (STATISTICS[name].fast_path is not None)


@each_statistic
def test_its_gradient_is_that_of_the_formula(name):
    q, k, lse = draw()
    value = getattr(survey(q, k, lse, statistics=[name], **OPTIONS, **TERMS), name)
    assert value.requires_grad == (name in DIFFERENTIABLE_STATISTICS)
    if value.requires_grad:
        weight = torch.randn_like(value)
        want = torch.autograd.grad((by_formula(name, q, k, lse) * weight).sum(), (q, k))
        q2, k2 = (x.detach().requires_grad_() for x in (q, k))
        lse2 = attend(q2, k2, k2, **TERMS)[1]
        value = getattr(survey(q2, k2, lse2, statistics=[name], **OPTIONS, **TERMS), name)
        assert_close(torch.autograd.grad((value * weight).sum(), (q2, k2)), want)


@each_statistic
def test_the_kernel_computes_the_statistics_of_its_records(name):
    kernel = pytest.importorskip("regard.ops.survey.kernel")
    if not kernel.INTERPRETED:
        pytest.skip("tests on a GPU are in test_survey_gpu.py")
    if STATISTICS[name].kernel is None:
        return
    q, k, lse = draw()
    result = survey(q.float(), k.float(), lse.float(), statistics=[name], backend="kernel",
                    **OPTIONS, **TERMS)  # fmt: skip
    want = by_formula(name, q, k, lse)
    assert_close(getattr(result, name).to(want.dtype), want.detach(), rtol=1e-4, atol=1e-5)


def test_a_statistic_may_be_finished_after_the_sum_over_tiles(monkeypatch):
    q, k = torch.randn(2, 9, 4), torch.randn(2, 9, 4)
    lse = attend(q, k, k)[1]
    entropy = survey(q, k, lse, statistics=["entropy"]).entropy
    perplexity = replace(STATISTICS["entropy"], finish=torch.exp)
    monkeypatch.setitem(STATISTICS, "entropy", perplexity)
    monkeypatch.setattr(tiling, "tile_size", lambda q: tiling.TileSize(16, 1, 4))
    result = survey(q, k, lse, statistics=["entropy"], backend="tiled")
    assert_close(result.entropy, entropy.exp())
