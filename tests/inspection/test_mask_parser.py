import pytest
import torch
from torch.testing import assert_close

from regard.inspection.adapters.mask_parser import parse_attention_mask
from regard.ops import masks
from regard.ops.masks import Causal, Local, Padding

LENGTHS, SKIP = torch.tensor([6, 4]), torch.tensor([0, 2])


def given(mask, queries=6, keys=6, offset=0):
    q, k = torch.zeros(2, 4, queries, 3), torch.zeros(2, 4, keys, 3)
    grid = masks.Grid((2, 1), range(queries), range(keys), offset, q.device)
    return mask.tile(grid).expand(2, 1, queries, keys), q, k


@pytest.mark.parametrize(
    ("mask", "window"),
    [
        (Causal(), None),
        (Causal() & Local(2), 3),
        (Local(2), 3),
        (Local(2), 5),
        (Padding(LENGTHS), None),
        (Padding(torch.tensor([6, 6]), SKIP), None),
        (Causal() & Padding(torch.tensor([6, 6]), SKIP), None),
        (Causal() & Local(2) & Padding(LENGTHS), 3),
    ],
    ids=str,
)
def test_a_structured_mask_is_recognised(mask, window):
    allowed, q, k = given(mask)
    found = parse_attention_mask(allowed, q, k, window=window)
    assert str(found.mask) == str(mask)
    assert (found.bias, found.offset) == (None, 0)
    added = torch.zeros(allowed.shape).masked_fill(~allowed, -torch.inf)
    assert str(parse_attention_mask(added, q, k, window=window)) == str(found)


@pytest.mark.parametrize("keys", [9, 12])  # 12: a static cache with room behind the text
def test_later_queries_stand_at_the_end_of_what_is_used(keys):
    allowed, q, k = given(Causal(), queries=3, keys=keys, offset=6)
    found = parse_attention_mask(allowed, q, k)
    assert (found.mask, found.offset) == (Causal(), 6)
    assert found.used_keys == (None if keys == 9 else 9)


def test_cross_attention_has_no_offset():
    allowed, q, k = given(Padding(torch.tensor([9, 5])), queries=3, keys=9)
    found = parse_attention_mask(allowed, q, k, same_sequence=False)
    assert (found.offset, found.used_keys) == (0, None)


@pytest.mark.parametrize("queries", [1, 6])
def test_all_allowed_is_no_mask(queries):
    allowed, q, k = given(Padding(torch.tensor([6, 6])), queries=queries)
    found = parse_attention_mask(allowed, q, k)
    assert (found.mask, found.offset) == (None, 6 - queries)


def test_an_unstructured_mask_stays_dense():
    _, q, k = given(Causal())
    allowed = torch.rand(2, 4, 6, 6) > 0.5
    found = parse_attention_mask(allowed, q, k)
    assert isinstance(found.mask, masks.DenseMask)
    assert torch.equal(found.mask.allowed, allowed)


def test_additive_biases_are_separated_from_the_mask():
    allowed, q, k = given(Causal())
    added = torch.randn(2, 4, 6, 6)
    found = parse_attention_mask(added.masked_fill(~allowed, -torch.inf), q, k)
    assert found.mask == Causal()
    assert found.bias is not None
    assert_close(found.bias.values, added.masked_fill(~allowed, 0))


def test_two_axes_are_read_as_padding_where_they_can_be():
    _, q, k = given(Causal())
    allowed = torch.arange(6) < LENGTHS[:, None]
    for mask in (allowed, allowed.long()):
        assert str(parse_attention_mask(mask, q, k).mask) == str(Padding(LENGTHS))


def test_rows_that_see_nothing_do_not_hide_the_structure():
    allowed, q, k = given(Causal() & Padding(torch.tensor([6, 6]), SKIP))
    assert not allowed[1, 0, 0].any()
    assert isinstance(parse_attention_mask(allowed, q, k).mask, masks.Both)
