"""Tiles of a zoomable attention map against the whole map."""

import struct
import threading
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import regard as rg
from regard.errors import FileError, LookError, ShapeError
from regard.inspection import MapPyramid, MapTile
from regard.inspection.sites import map_cells, map_tile
from regard.ops import biases
from regard.ops.masks import DenseMask, Mask

HALF = 2.0**-11  # relative error of float16


class Odd(Mask):
    """A mask of a caller's own, different for each head."""

    def at(self, b, h, i, j):
        return (j // 5 + i // 3 + h) % 2 == 0


def make(queries=77, keys=None, heads=2, kv_heads=1, batch=1, head_dim=4, **terms):
    torch.manual_seed(0)
    keys = queries if keys is None else keys
    q = 2 * torch.randn(batch, heads, queries, head_dim)
    return rg.make_site(q, torch.randn(batch, kv_heads, keys, head_dim), **terms)


def finish(pyramid):
    for _ in pyramid.advance():
        pass
    return pyramid


def whole_level(pyramid, level, reduce, view="tile"):
    """All tiles of a level, joined."""
    shape = pyramid.level_shape(level) if view == "tile" else pyramid.band_shape(level)
    rows, columns = (range(-(-n // pyramid.tile_size)) for n in shape)
    tiles = [[getattr(pyramid, view)(level, r, c, reduce) for c in columns] for r in rows]
    assert all(tile.complete for line in tiles for tile in line)
    return torch.cat([torch.cat([tile.values for tile in line], 1) for line in tiles])


def brute_force(w, visible, size, reduce):
    """Cells of a whole map; NaN stands for weights beyond its edge."""
    rows, keys = w.shape
    w = F.pad(w, (0, -keys % size, 0, -rows % size), value=torch.nan)
    seen = F.pad(visible, (0, -keys % size, 0, -rows % size))
    w, seen = (x.unflatten(0, (-1, size)).unflatten(2, (-1, size)) for x in (w, seen))
    cells = w.nanmean((1, 3)) if reduce == "mean" else w.nan_to_num(-1).amax((1, 3))
    return cells.masked_fill(~seen.any(3).any(1), torch.nan)


CASES = {
    "full": {},
    "grouped": {"heads": 4, "kv_heads": 2},
    "causal": {"mask": rg.Causal()},
    "local": {"mask": rg.Causal() & rg.Local(9)},
    "padding": {"batch": 2, "mask": rg.Padding(torch.tensor([77, 40]), torch.tensor([0, 10]))},
    "padded causal": {"batch": 2, "mask": rg.Padding(torch.tensor([77, 30])) & rg.Causal()},
    "documents": {"batch": 2, "mask": rg.Documents(torch.arange(154).view(2, 77) // 20)},
    "dense": {"batch": 2, "mask": torch.rand(2, 2, 77, 77) > 0.9},
    "cross": {"keys": 130},
    "wide": {"queries": 3, "keys": 300},
    "tall": {"queries": 300, "keys": 3},
    "offset": {"keys": 100, "offset": 23, "mask": rg.Causal()},
    "softcap": {"softcap": 2.0, "mask": rg.Causal()},
    "bias": {
        "batch": 2,
        "bias": biases.DenseBias(torch.randn(2, 2, 77, 77)) + rg.ALiBi(torch.rand(2)),
    },
    "sinks": {"sinks": torch.tensor([0.0, 2.0])},
    "custom mask": {"batch": 2, "mask": Odd()},
    "chunked": {"mask": rg.ops.masks.Chunked(16, left_chunks=1)},
}


@pytest.fixture
def rough_preview(monkeypatch):
    """Previews of few rows, so that margins come from the pass."""
    monkeypatch.setattr(map_tile, "MIN_PREVIEW_ROWS", 8)
    monkeypatch.setattr(map_tile, "PREVIEW_WEIGHTS", 64)


every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def visible_of(site, head, batch):
    if site.terms.mask is None:
        return torch.ones(site.queries, site.keys, dtype=torch.bool)
    grid = site.terms.grid(site.q, site.k)
    shape = site.batch, site.heads, site.queries, site.keys
    return site.terms.mask.tile(grid).expand(shape)[batch, head]


# ---- worked numbers


def test_a_causal_map_of_equal_scores_by_hand():
    site = rg.make_site(*torch.zeros(2, 4, 2), mask=rg.Causal())
    pyramid = MapPyramid(site, head=0, tile=2)
    assert pyramid.levels == 2
    assert_close(
        pyramid.tile(1, 0, 0).values,
        torch.tensor([[2 / 4, torch.nan], [(2 / 3 + 2 / 4) / 4, (1 / 3 + 2 / 4) / 4]]),
        equal_nan=True,
    )
    assert_close(
        pyramid.tile(1, 0, 0, "max").values,
        torch.tensor([[1.0, torch.nan], [1 / 3, 1 / 3]]),
        equal_nan=True,
    )


def test_bytes_of_a_tile_by_hand():
    tile = MapTile(
        values=torch.tensor([[2.0**-20, 0.0, torch.nan]]),
        level=9, row=3, column=4, reduce="max", complete=False, version=7,
    )  # fmt: skip
    data = tile.to_bytes()
    header = struct.unpack("<4sBBBBhHHHIIII", data[:32])
    assert header == (b"RGTL", 1, 9, 1, 0, -34, 1, 3, 0, 3, 4, 7, 0)
    assert struct.unpack("<ee", data[32:36]) == (2.0**14, 0.0)
    back = MapTile.from_bytes(data)
    assert_close(back.values, tile.values, rtol=0, atol=0, equal_nan=True)
    assert (back.level, back.row, back.column, back.reduce, back.version) == (9, 3, 4, "max", 7)
    assert not back.complete


# ---- properties


@pytest.mark.parametrize("largest", [1.0, 3e-5, 1e-9, 1e-20])
def test_bytes_keep_eleven_bits_far_below_the_maximum(largest):
    values = largest * 2 ** -(28 * torch.rand(64, 64))
    values[0, 0] = largest
    tile = MapTile(values=values, level=0, row=0, column=0)
    assert_close(MapTile.from_bytes(tile.to_bytes()).values, values, rtol=HALF, atol=0)


@pytest.mark.parametrize("values", [torch.zeros(2, 2), torch.full((2, 2), torch.nan)])
def test_bytes_of_empty_tiles(values):
    tile = MapTile(values=values, level=0, row=0, column=0)
    assert_close(MapTile.from_bytes(tile.to_bytes()).values, values, equal_nan=True)


@every_case
@pytest.mark.parametrize(("tile", "base_level"), [(32, 0), (16, 2), (16, None)])
def test_every_level_is_the_pooled_map(case, tile, base_level):
    site = make(**case)
    head, batch = site.heads - 1, site.batch - 1
    w, visible = site.window(head)[batch], visible_of(site, head, batch)
    pyramid = finish(MapPyramid(site, head, batch, tile=tile, base_level=base_level))
    for level in range(pyramid.levels):
        for reduce in ("mean", "max"):
            got = whole_level(pyramid, level, reduce)
            is_stored = level >= pyramid.base_level
            want = brute_force(w, visible, 1 << level, reduce)
            assert_close(got, want, rtol=HALF if is_stored else 2e-5, atol=1e-12, equal_nan=True)


@every_case
def test_margins_are_those_of_the_survey(case, rough_preview):
    site = make(**case)
    head, batch = site.heads - 1, site.batch - 1
    survey = site.survey(statistics=["entropy", "received"])
    pyramid = finish(MapPyramid(site, head, batch, tile=16, base_level=2))
    for level in range(pyramid.levels):
        margins, size = pyramid.margins(level), 1 << level
        assert margins.complete
        for name in ("entropy", "received"):
            line = getattr(survey, name)[batch, head]
            want = torch.stack([part.mean() for part in line.split(size)])
            assert_close(getattr(margins, name), want, rtol=1e-4, atol=1e-5)


@every_case
def test_the_band_is_the_map_along_its_diagonals(case):
    site = make(**case)
    head, batch, offset = site.heads - 1, site.batch - 1, site.terms.offset
    w, visible = site.window(head)[batch], visible_of(site, head, batch)
    pyramid = MapPyramid(site, head, batch, tile=32)
    i = torch.arange(site.queries)[:, None]
    j = i + offset - torch.arange(site.queries + offset)
    exists = (j >= 0) & (j < site.keys)
    at = i, j.clamp(0, site.keys - 1)
    for level in range(min(3, pyramid.levels)):
        size = 1 << level
        mean = brute_force(w[at] * exists, visible[at] & exists, size, "mean")
        share = brute_force(exists.float(), exists, size, "mean")
        got = whole_level(pyramid, level, "mean", "band")
        assert_close(got, mean / share, rtol=2e-5, atol=1e-12, equal_nan=True)
        top = brute_force(w[at] * exists, visible[at] & exists, size, "max")
        got = whole_level(pyramid, level, "max", "band")
        assert_close(got, top, rtol=2e-5, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("n", [1, 255, 257])
def test_odd_lengths_agree_with_the_pooled_window(n):
    site = make(n)
    pyramid = MapPyramid(site, 0)
    assert pyramid.levels == 1 + (n > 256)
    for level in range(pyramid.levels):
        want = site.window(0, pool=(1 << level, 1 << level))[0]
        assert_close(whole_level(pyramid, level, "mean"), want, rtol=2e-5, atol=0)


def test_a_map_of_5000_agrees_with_the_pooled_window():
    site = make(5000, head_dim=8, mask=rg.Causal())
    pyramid = finish(MapPyramid(site, 1))
    assert (pyramid.levels, pyramid.base_level) == (6, 5)
    for reduce in ("mean", "max"):
        want = site.window(1, pool=(32, 32), reduce=reduce)[0]
        got = pyramid.tile(5, 0, 0, reduce)
        assert got.complete
        assert_close(got.values.nan_to_num(0.0), want, rtol=HALF, atol=1e-9)
        tile = pyramid.tile(3, 2, 1, reduce).values
        want = site.window(1, slice(4096, None), slice(2048, 4096), (8, 8), reduce)[0]
        assert_close(tile, want, rtol=2e-5, atol=1e-12)


def test_tiles_become_complete_and_then_stay(rough_preview):
    pyramid = MapPyramid(make(300, mask=rg.Causal()), 0, tile=16, base_level=2)
    top, seen = pyramid.levels - 1, []
    for _ in pyramid.advance():
        tile = pyramid.tile(top, 0, 0)
        seen.append((tile.version, tile.complete, tile.to_bytes()))
    assert seen[0][:2] == (0, False)
    assert [version for version, *_ in seen] == sorted(version for version, *_ in seen)
    assert [complete for _, complete, _ in seen].index(True) == len(seen) - 2  # then 1.0 once more
    by_version = {}
    for version, _, data in seen:  # one version, one content
        assert by_version.setdefault(version, data) == data
    first = pyramid.tile(3, 0, 0).to_bytes()
    finish(pyramid)
    assert pyramid.tile(top, 0, 0).to_bytes() == seen[-1][2]
    assert pyramid.tile(3, 0, 0).to_bytes() == first


def test_a_preview_resembles_the_map(monkeypatch):
    monkeypatch.setattr(map_tile, "PREVIEW_WEIGHTS", 64 * 404)
    site = make(404, mask=rg.Causal())
    q = site.q.clone()
    q[:] = q[:, :, :1]  # all rows alike: the preview can be exact away from the diagonal
    site = rg.make_site(q, site.k, mask=rg.Local(0) | DenseMask(torch.ones(1, 404).bool()))
    preview = MapPyramid(site, 0, tile=16, base_level=2)
    assert preview._ensure_preview().stride == 8
    assert not preview.tile(2, 0, 0).complete
    exact = finish(MapPyramid(site, 0, tile=16, base_level=2))
    for level in (2, 3, 4):
        for reduce in ("mean", "max"):
            got, want = (p.tile(level, 0, 1, reduce).values for p in (preview, exact))
            assert_close(got, want, rtol=2 * HALF, atol=0)
    assert_close(preview.margins(2).received, exact.margins(2).received, rtol=1e-4, atol=1e-5)
    assert_close(preview.margins(2).entropy, exact.margins(2).entropy, rtol=1e-4, atol=1e-5)


def test_a_preview_hides_what_the_mask_hides(monkeypatch):
    monkeypatch.setattr(map_tile, "PREVIEW_WEIGHTS", 64 * 400)
    site = make(400, mask=rg.Causal())
    pyramid = MapPyramid(site, 0, tile=16, base_level=2)
    top = pyramid.levels - 1
    preview = pyramid.tile(top, 0, 0).values.isnan()
    assert torch.equal(preview, finish(pyramid).tile(top, 0, 0).values.isnan())


def test_cancelling_stops_within_one_block_and_a_later_pass_continues(monkeypatch, rough_preview):
    monkeypatch.setattr(map_tile, "STEP_WEIGHTS", 4 * 32)
    site = make(200, mask=rg.Causal())
    whole = finish(MapPyramid(site, 0, tile=8, base_level=2))
    part, calls = MapPyramid(site, 0, tile=8, base_level=2), []

    def cancelled():
        calls.append(None)
        return len(calls) > 30

    steps = [*part.advance(cancelled)]
    assert len(calls) == 31
    assert 0 < steps[-1] < 1
    assert steps == sorted(steps)
    assert len([*part.advance(lambda: True)]) == 0
    assert [*part.advance()][-1] == 1.0
    for level in range(2, part.levels):
        tiles = (p.tile(level, 0, 0).to_bytes() for p in (part, whole))
        assert next(tiles) == next(tiles)
    assert_close(part.margins(0).received, whole.margins(0).received)


def test_two_passes_at_once_count_each_weight_once(monkeypatch, rough_preview):
    monkeypatch.setattr(map_tile, "STEP_WEIGHTS", 4 * 32)
    site = make(200, mask=rg.Causal())
    shared = MapPyramid(site, 0, tile=8, base_level=2)
    for _ in zip(shared.advance(), shared.advance(), strict=False):
        pass
    received = site.survey(statistics=["received"]).received[0, 0]
    assert_close(shared.margins(0).received, received)


def test_readers_and_a_worker_share_a_pyramid():
    site = make(300, mask=rg.Causal())
    shared, errors = MapPyramid(site, 0, tile=16, base_level=1), []

    def read():
        try:
            while not shared.tile(shared.levels - 1, 0, 0).complete:
                shared.margins(3)
        except Exception as error:
            errors.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    workers = [threading.Thread(target=finish, args=(shared,)) for _ in range(2)]
    for thread in readers + workers:
        thread.start()
    for thread in readers + workers:
        thread.join()
    assert not errors
    alone = finish(MapPyramid(site, 0, tile=16, base_level=1))
    assert shared.tile(4, 0, 0).to_bytes() == alone.tile(4, 0, 0).to_bytes()
    assert_close(shared.margins(2).received, alone.margins(2).received)


def test_no_tensor_grows_with_the_square_of_the_length():
    class Largest(TorchDispatchMode):
        size = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            sizes = [x.untyped_storage().nbytes() for x in tree_leaves(out) if torch.is_tensor(x)]
            self.size = max([self.size, *sizes])
            return out

    n = 4000
    site = make(n, head_dim=4, mask=rg.Causal())
    with Largest() as largest:
        pyramid = finish(MapPyramid(site, 0, base_level=4))
        pyramid.tile(4, 0, 0)
        pyramid.tile(3, 0, 0)
        pyramid.band(3, 0, 0)
        pyramid.margins(0)
    rows, keys = map_cells.CPU_BLOCK
    assert largest.size <= 4 * max(rows * keys, map_cells.BAND_ROWS * (2048 + 512))
    assert largest.size < n * n


def test_the_stored_cells_are_bounded():
    site = rg.make_site(torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 1, 1))
    for n, level in ((4096, 5), (4097, 5), (16384, 5), (131072, 5), (131073, 6), (1 << 20, 8)):
        q = torch.empty(1, 1, n, 1)
        made = MapPyramid(replace(site, q=q, k=q, v=q, out=q, lse=q[..., 0]), 0)
        assert made.base_level == level
        rows, columns = made.level_shape(min(level, made.levels - 1))
        assert rows * columns <= 1 << 24


# ---- errors


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (lambda p: p.tile(9, 0, 0), "level: needs less than 4, got 9"),
        (lambda p: p.tile(0, 8, 0), "row: needs less than 8, got 8"),
        (lambda p: p.band(0, 0, 9), "column: needs less than 8, got 9"),
        (lambda p: p.margins(4), "level: needs less than 4, got 4"),
        (lambda p: MapPyramid(make(5), 0, tile=3), "tile: needs a power of two"),
        (lambda p: MapPyramid(make(5), 2), "head: needs less than 2, got 2"),
        (lambda p: MapPyramid(make(5), 0, batch=1), "batch: needs less than 1, got 1"),
        (lambda p: MapPyramid(make(99), 0, base_level=7), "base_level: needs 0 to 1, got 7"),
    ],
)
def test_mistakes_are_named(work, message):
    with pytest.raises(ShapeError, match=message):
        work(MapPyramid(make(64), 0, tile=8))


def test_other_bytes_are_no_tile():
    with pytest.raises(FileError, match="data: needs a tile of format 1, got b'abc'"):
        MapTile.from_bytes(b"abc")


def test_a_site_without_tensors_has_no_pyramid():
    site = make(4)
    tensors = {name: getattr(site, name).to("meta") for name in ("q", "k", "v", "out", "lse")}
    with pytest.raises(LookError, match="needs its queries and keys"):
        MapPyramid(replace(site, **tensors), 0)
