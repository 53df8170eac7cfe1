import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from regard import ops
from regard.errors import ShapeError
from regard.ops import Terms, attend, attention_weights, tiling, window
from regard.ops.attend.reference import compute_window

pooled_module = sys.modules[compute_window.__module__]


def draw(queries=9, keys=8):
    q = torch.randn(2, 4, queries, 3, dtype=torch.float64)
    k = torch.randn(2, 2, keys, 3, dtype=torch.float64)
    return q, k, attend(q, k, k, mask=ops.Causal())[1]


@given(a=st.integers(0, 7), b=st.integers(1, 9), c=st.integers(0, 6), d=st.integers(1, 9))
def test_a_window_is_a_slice_of_the_map(a, b, c, d):
    q, k, lse = draw()
    part = window(q, k, lse, rows=slice(a, a + b), keys=slice(c, c + d), mask=ops.Causal())
    whole = attention_weights(q, k, mask=ops.Causal())
    assert_close(part, whole[..., a : a + b, c : c + d])


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
@pytest.mark.parametrize("pool", [(1, 1), (2, 3), (9, 8), (4, 1), (20, 20)])
def test_pooling_is_that_of_the_map(reduce, pool, monkeypatch):
    monkeypatch.setattr(tiling, "MAX_SCORES", 100)
    q, k, lse = draw()
    got = window(q, k, lse, pool=pool, reduce=reduce, mask=ops.Causal())
    whole = attention_weights(q, k, mask=ops.Causal())
    fold = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax}[reduce]
    want = torch.stack(
        [
            torch.stack([fold(cell, (-2, -1)) for cell in band.split(pool[1], -1)], -1)
            for band in whole.split(pool[0], -2)
        ],
        -2,
    )
    assert_close(got, want)


@pytest.mark.parametrize("pool", [(2, 3), (9, 8), (1, 5)])
def test_tiles_of_cells_are_those_of_the_map_and_their_gradient(pool, monkeypatch):
    whole_map = tiling.TileSize(1 << 20, 1, 512)
    q, k, _ = draw(queries=11)

    def pooled(tile: tiling.TileSize) -> list[torch.Tensor]:
        monkeypatch.setattr(pooled_module, "CACHE_TILE", tile)
        inputs = [x.clone().requires_grad_() for x in (q, k)]
        terms = {"mask": ops.Causal() & ops.Local(2), "rows": slice(1, None), "keys": slice(1, 8)}
        cells = window(*inputs, attend(*inputs, k, mask=terms["mask"])[1], pool=pool, **terms)
        with torch.no_grad():  # in a buffer
            lse = attend(q, k, k, mask=terms["mask"])[1]
            assert_close(window(q, k, lse, pool=pool, **terms), cells)
        return [cells, *torch.autograd.grad(cells.sin().sum(), inputs)]

    for got, want in zip(pooled(tiling.TileSize(8, 1, 4)), pooled(whole_map), strict=True):
        assert_close(got, want)


def test_pooling_computes_visible_tiles_only(monkeypatch):
    scores = []
    score_tile = Terms.score_tile
    monkeypatch.setattr(
        Terms, "score_tile", lambda *args, **kw: scores.append(x := score_tile(*args, **kw)) or x
    )
    q = torch.randn(1, 4096, 2)
    window(q, q, torch.zeros(1, 4096), pool=(64, 64), mask=ops.Causal() & ops.Local(100))
    assert sum(x.numel() for x in scores) < 0.5 * 4096**2


def test_a_cell_of_a_huge_map_costs_no_more_than_a_cell():
    q = k = torch.randn(1, 1 << 17, 8)
    lse = torch.zeros(1, 1 << 17)
    cell = window(q, k, lse, rows=slice(-1, None), keys=slice(5, 6))
    assert_close(cell[0, 0, 0], torch.exp(q[0, -1] @ k[0, 5] / 8**0.5))


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": slice(20, 30)}, "rows: needs at least one of 9"),
        ({"keys": slice(0, 8, 2)}, "keys: needs step 1, got 2; try pool"),
        ({"pool": (0, 1)}, "pool: needs 1 or more"),
        ({"reduce": "min"}, "reduce: needs sum, mean or max, got 'min'"),
    ],
)
def test_bad_input_raises_with_its_numbers(change, message):
    q, k, lse = draw()
    with pytest.raises(ShapeError, match=message):
        window(q, k, lse, **change)
