"""Masks: each is its formula, they combine as sets, and their shortcuts are correct."""

from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from term_cases import EXAMPLES
from torch import Tensor

from regard.errors import ShapeError
from regard.ops import Causal, Chunked, Documents, Local, Mask, Padding
from regard.ops.grid import Grid
from regard.ops.masks import Both, DenseMask, Either

SIZE = 12  # no drawn map is larger


def bits(rows: int, keys: int) -> st.SearchStrategy[Tensor]:
    cells = st.lists(st.booleans(), min_size=rows * keys, max_size=rows * keys)
    return cells.map(lambda x: torch.tensor(x).view(rows, keys))


def some_ids() -> st.SearchStrategy[Tensor]:
    runs = st.lists(st.integers(0, 2), min_size=SIZE, max_size=SIZE)
    return runs.map(lambda x: torch.tensor([sorted(x)]))


small = st.integers(0, 5)
simple = st.one_of(
    st.just(Causal()),
    small.map(Local),
    st.builds(Chunked, st.integers(1, 5), st.none() | small),
    st.builds(
        lambda n, skip: Padding(torch.tensor(n), torch.tensor(skip) if skip else None),
        st.integers(0, SIZE),
        small,
    ),
    some_ids().map(Documents),
    bits(SIZE, SIZE).map(DenseMask),
)
any_mask = st.recursive(
    simple,
    lambda inner: st.builds(
        lambda a, b, both: a & b if both else a | b, inner, inner, st.booleans()
    ),
    max_leaves=4,
)


@st.composite
def parts(draw, size: int = SIZE) -> range:
    start = draw(st.integers(0, size))
    return range(start, draw(st.integers(start, size)), draw(st.integers(1, 3)))


def seen(mask: Mask, rows: range, keys: range, offset: int = 0) -> Tensor:
    grid = Grid((), rows, keys, offset, torch.device("cpu"))
    return mask.tile(grid).expand(len(rows), len(keys))


@pytest.mark.parametrize(
    ("mask", "rule"),
    [
        (Causal(), lambda i, j: j <= i),
        (Local(2), lambda i, j: abs(i - j) <= 2),
        (Chunked(3), lambda i, j: j // 3 <= i // 3),
        (Chunked(3, left_chunks=1), lambda i, j: 0 <= i // 3 - j // 3 <= 1),
        (Padding(torch.tensor(5)), lambda i, j: j < 5),
        (Padding(torch.tensor(7), torch.tensor(2)), lambda i, j: 2 <= j < 7),
        (Documents(torch.arange(9)[None] // 4), lambda i, j: i // 4 == j // 4),
    ],
    ids=lambda x: repr(x) if isinstance(x, Mask) else "",
)
@pytest.mark.parametrize("offset", [0, 3])
def test_each_mask_is_its_formula(mask, rule, offset):
    want = [[rule(i + offset, j) for j in range(9)] for i in range(6)]
    assert mask.dense(6, 9, offset).tolist() == want


@given(any_mask, any_mask)
def test_and_is_intersection_and_or_is_union(a, b):
    one, two = a.dense(SIZE, SIZE), b.dense(SIZE, SIZE)
    assert torch.equal((a & b).dense(SIZE, SIZE), one & two)
    assert torch.equal((a | b).dense(SIZE, SIZE), one | two)


@given(any_mask, parts(), parts())
def test_a_tile_is_a_slice_of_the_mask(mask, rows, keys):
    whole = mask.dense(SIZE, SIZE)
    assert torch.equal(seen(mask, rows, keys), whole[list(rows)][:, list(keys)])


@settings(max_examples=200)
@given(any_mask, parts(), st.integers(0, SIZE), st.data())
def test_no_key_outside_key_span_is_visible(mask, rows, keys, data):
    # a dense matrix has rows, not positions, so only without it may queries start later
    offset = 0 if holds_dense(mask) else data.draw(st.integers(0, SIZE - rows.stop))
    places = range(rows.start + offset, rows.stop + offset, rows.step)
    span = mask.key_span(places, keys)
    assert 0 <= span.start <= span.stop <= keys
    hidden = [j for j in range(keys) if j not in span]
    assert not seen(mask, rows, range(keys), offset)[:, hidden].any()


@settings(max_examples=200)
@given(any_mask, parts(), parts(), st.data())
def test_where_a_mask_is_full_every_key_is_visible(mask, rows, keys, data):
    offset = 0 if holds_dense(mask) else data.draw(st.integers(0, SIZE - rows.stop))
    places = range(rows.start + offset, rows.stop + offset, rows.step)
    if mask.is_full(places, keys):
        assert seen(mask, rows, keys, offset).all()


PLAIN = [EXAMPLES[cls] for cls in (Causal, Local, Chunked, Both, Either)]
STRUCTURED = [*PLAIN, Local(0), Chunked(3), Chunked(2, left_chunks=0)]


@pytest.mark.parametrize("a", STRUCTURED, ids=repr)
@pytest.mark.parametrize("b", STRUCTURED, ids=repr)
def test_shortcuts_of_combined_masks_are_correct_at_any_position(a, b):
    for mask in (a & b, a | b):
        whole = mask.dense(SIZE, SIZE)
        for start, stop in combinations(range(SIZE + 1), 2):
            places = range(start, stop)
            for keys in (0, 2, 7, SIZE):  # fewer keys than positions: queries may stand beyond
                span = mask.key_span(places, keys)
                assert 0 <= span.start <= span.stop <= keys, (mask, places, keys)
                outside = [j for j in range(keys) if j not in span]
                assert not whole[start:stop, outside].any(), (mask, places, keys)
            for first, last in ((0, start + 1), (start, stop), (stop - 1, SIZE), (start, SIZE)):
                if mask.is_full(places, range(first, last)):
                    assert whole[start:stop, first:last].all(), (mask, places, first, last)


@pytest.mark.parametrize(
    "mask", [Causal(), Local(2), Chunked(3), Chunked(2, left_chunks=1)], ids=repr
)
def test_key_span_and_is_full_are_tight_for_structured_masks(mask):
    for start in range(SIZE):
        for stop in range(start + 1, SIZE + 1):
            open_ = seen(mask, range(start, stop), range(SIZE)).any(0).nonzero().flatten().tolist()
            assert list(mask.key_span(range(start, stop), SIZE)) == open_
            for first, last in ((0, start), (start, stop), (stop - 1, stop), (start, SIZE)):
                keys = range(first, last)
                whole = bool(seen(mask, range(start, stop), keys).all())
                assert mask.is_full(range(start, stop), keys) == whole or not keys


def test_lengths_are_read_by_sequence_whatever_the_heads():
    mask = Padding(torch.tensor([1, 3]))
    grid = Grid((2, 4), range(2), range(3), 0, torch.device("cpu"))
    tile = mask.tile(grid).expand(2, 4, 2, 3)
    assert tile[0].sum() == 4 * 2 * 1
    assert tile[1].sum() == 4 * 2 * 3


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Local(-1), "radius: needs 0 or more, got -1"),
        (lambda: Chunked(0), "size: needs 1 or more, got 0"),
        (
            lambda: Chunked(2, left_chunks=-1),
            "left_chunks: needs 0 or more, got -1; try None for all chunks",
        ),
        (
            lambda: Padding(torch.tensor([1, 2])).check(3, 4, 4),
            "lengths: needs one for each of 3 sequences, got 2",
        ),
        (
            lambda: Padding(torch.tensor([1]), torch.tensor([0, 0])).check(1, 4, 4),
            "left_padding: needs one for each of 1 sequences, got 2",
        ),
        (
            lambda: Documents(torch.zeros(2, 3, dtype=torch.long)).check(2, 3, 5),
            "ids: needs 2 sequences of at least 5 positions, got (2, 3)",
        ),
        (
            lambda: DenseMask(torch.ones(2, 2, dtype=torch.bool)).dense(2, 3),
            "mask: needs at least 2 queries by 3 keys, got 2 by 2",
        ),
    ],
)
def test_an_invalid_mask_raises(make, message):
    with pytest.raises(ShapeError) as error:
        make()
    assert str(error.value) == message


def holds_dense(mask: Mask) -> bool:
    inner = [part for name in ("a", "b") if isinstance(part := getattr(mask, name, None), Mask)]
    return isinstance(mask, DenseMask) or any(map(holds_dense, inner))


@given(any_mask, st.integers(0, SIZE // 2))
def test_a_mask_that_allows_no_future_masks_it(mask, offset):
    if not mask.allows_future:
        seen = mask.dense(SIZE - offset, SIZE, offset)
        assert not seen.triu(1 + offset).any()


def test_a_causal_part_is_enough_not_to_look_ahead():
    assert not (Causal() & Local(3)).allows_future
    assert (Causal() | Local(3)).allows_future
