"""Constructed heads get the right type, with exact statistics."""

import math
from dataclasses import fields

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

from regard.errors import LookError, ShapeError
from regard.inspection import HeadRow, HeadTable, Thresholds, look, make_site, score_heads
from regard.inspection.heads.head_table import COLUMNS, MORE_COLUMNS, classify_head
from regard.inspection.heads.measures import classify_heads, merge_layers
from regard.inspection.heads.patterns import (
    informative_queries,
    offset_exists,
    offset_weights,
    pattern_scores,
    visible_key_counts,
)
from regard.models import LanguageModel, language_tiny
from regard.nn import MultiHeadAttention
from regard.ops import ALiBi, Causal, Local, Padding, Toeplitz, attend, biases
from regard.ops.masks import DenseMask, Documents
from regard.ops.survey.statistics import QUERY_STATISTICS

N = 24


def equal(queries: int = N, keys: int = N) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(1, 1, queries, 4), torch.zeros(1, 1, keys, 4)


def to_key(target: torch.Tensor, keys: int, sharp: float = 30.0) -> tuple:
    """Queries and keys for which query i looks at key target[i]."""
    codes = torch.eye(keys) * sharp**0.5
    scale = keys**0.25  # the scores are divided by the root of feat = keys
    return (codes[target] * scale)[None, None], (codes * scale)[None, None]


def ahead(offset: int) -> Toeplitz:
    table = torch.zeros(1, 21)
    table[0, 10 + offset] = 30.0
    return Toeplitz(table)


def word(site, **how) -> str:
    (row,) = classify_heads([site], **how)
    return row.type


# worked numbers


def test_the_band_holds_the_weights_along_the_diagonals():
    site = make_site(torch.randn(2, 2, 150, 8), torch.randn(2, 1, 150, 8), mask=Causal())
    got, whole = offset_weights(site, -3, 1), site.weights()
    for at, offset in enumerate(range(-3, 2)):
        start = max(0, -offset)
        want = whole.diagonal(offset, -2, -1)
        assert_close(got[:, :, start : start + want.shape[-1], at], want)
    assert (got[:, :, 0, :3] == 0).all()
    assert offset_exists(site, -3, 1).sum() == 5 * 150 - 3 - 2 - 1 - 1


def test_the_band_of_cached_queries_starts_at_their_places():
    q, k = torch.randn(1, 2, 9, 8), torch.randn(1, 2, 9, 8)
    whole = offset_weights(make_site(q, k, mask=Causal()), -2, 0)
    last = offset_weights(make_site(q[:, :, 6:], k, mask=Causal(), offset=6), -2, 0)
    assert_close(last, whole[:, :, 6:])


def test_visible_counts_the_keys_of_a_query():
    q = torch.zeros(2, 1, 300, 4)
    mask = Causal() & Local(9) & Padding(torch.tensor([300, 20]))
    site = make_site(q, q, mask=mask)
    dense = torch.stack([mask_of(mask, b) for b in range(2)])[:, None]
    assert torch.equal(visible_key_counts(site), dense.sum(-1))


def mask_of(mask, b: int) -> torch.Tensor:
    i, j = torch.arange(300)[:, None], torch.arange(300)
    return mask.at(torch.tensor(b), torch.tensor(0), i, j)


def test_padding_and_queries_with_one_key_do_not_count():
    q = torch.zeros(2, 1, 5, 4)
    site = make_site(q, q, mask=Causal() & Padding(torch.tensor([5, 3])))
    counted = informative_queries(site, visible_key_counts(site))[:, 0].int().tolist()
    assert counted == [[0, 1, 1, 1, 1], [0, 1, 1, 0, 0]]


def test_the_numbers_are_means_of_the_map():
    site = make_site(torch.randn(1, 2, 40, 8) * 2, torch.randn(1, 2, 40, 8) * 2)
    w = site.weights()[0]
    for row in classify_heads([site]):
        own = w[row.head]
        assert row.self_share == pytest.approx(own.diagonal().mean().item(), rel=1e-5)
        assert row.previous_share == pytest.approx(own.diagonal(-1).mean().item(), rel=1e-5)
        assert row.next_share == pytest.approx(own.diagonal(1).mean().item(), rel=1e-5)
        assert row.sink_share == pytest.approx(own[:, 0].mean().item(), rel=1e-5)
        assert row.peak == pytest.approx(own.amax(-1).mean().item(), rel=1e-5)
        assert row.offset_share == pytest.approx(
            max(own.diagonal(d).mean().item() for d in range(-8, 9) if abs(d) > 1), rel=1e-5
        )


# properties: each type


def test_identity_previous_next_and_any_other_fixed_offset():
    q, k = equal()
    assert word(make_site(q, k, bias=ALiBi(torch.tensor([30.0])))) == "identity"
    assert word(make_site(q, k, bias=ahead(-1))) == "previous"
    assert word(make_site(q, k, bias=ahead(1))) == "next"
    assert word(make_site(q, k, bias=ahead(-4), mask=Causal())) == "offset -4"
    assert word(make_site(q, k, bias=ahead(3))) == "offset +3"
    for near in (-1, 0, 1):  # have names of their own
        (row,) = classify_heads([make_site(q, k, bias=ahead(near))])
        assert (row.offset_share < 0.01, row.self_share > 0.9) == (True, near == 0)


def test_local_has_its_kernel_fitted_with_no_residual():
    q, k = equal()
    taps = torch.tensor([[0.1, 0.2, 0.4, 0.2, 0.1]])
    (row,) = classify_heads([make_site(q, k, bias=Toeplitz(taps.log()), mask=Local(2))])
    assert row.type == "local"
    middle = len(row.kernel) // 2
    assert row.kernel[middle - 2 : middle + 3] == pytest.approx([0.1, 0.2, 0.4, 0.2, 0.1])
    assert row.residual == pytest.approx(0, abs=1e-6)


def test_near_weight_that_differs_from_place_to_place_is_not_a_convolution():
    q, k = torch.randn(1, 1, 64, 4) * 6, torch.randn(1, 1, 64, 4)
    (row,) = classify_heads([make_site(q, k, mask=Local(6))])
    assert row.local_share == pytest.approx(1)
    assert row.residual > 0.3
    assert row.type != "local"


def test_weight_outside_of_the_kernel_counts_as_residual():
    table = torch.full((1, N, N), -30.0)
    table[0].fill_diagonal_(0)
    table[0, :, 0] = 0  # half for itself, half for the first
    q, k = equal()
    (row,) = classify_heads([make_site(q, k, bias=biases.DenseBias(table))])
    assert row.kernel[row.radius] == pytest.approx(0.5)
    assert row.residual == pytest.approx(0.5, abs=0.03)


def test_a_rare_offset_gives_no_type():
    q, k = torch.zeros(1, 1, 9, 4), torch.zeros(1, 1, 9, 4)
    table = torch.zeros(1, 9, 9)
    table[0, 8, 0] = 30  # the only query that has a key 8 places back looks there
    (row,) = classify_heads([make_site(q, k, bias=biases.DenseBias(table))])
    assert row.offset_share < 0.3
    assert not row.type.startswith("offset")


def test_permutation_and_hard():
    order = torch.randperm(N, generator=torch.Generator().manual_seed(3))
    assert word(make_site(*to_key(order, N))) == "permutation"
    assert word(make_site(*to_key(torch.tensor([5, 17]).repeat(N // 2), N))) == "hard"


def test_sinks_are_the_first_key_or_a_key_without_value():
    first = torch.zeros(N, dtype=torch.long)
    assert word(make_site(*to_key(first, N), mask=Causal())) == "sink"
    q, k = equal()
    e9 = math.exp(9)
    (row,) = classify_heads([make_site(q, k, sinks=torch.tensor([9.0]))])
    assert row.type == "sink"
    assert row.sink_share == pytest.approx((e9 + 1) / (e9 + N), rel=1e-5)


def test_diffuse_and_mixed():
    q, k = equal()
    assert word(make_site(q, k)) == "diffuse"
    assert word(make_site(q, k, mask=Causal())) == "diffuse"
    assert word(make_site(*torch.randn(2, 1, 1, N, 16) * 1.5)) == "mixed"


def test_separator_counts_tokens_by_their_text():
    tokens = ["[CLS]", *["word"] * 10, ".", *["word"] * 10, ".", "[SEP]"]
    at = torch.tensor([11 if i < 12 else 22 for i in range(N)])
    site = make_site(*to_key(at, N), tokens=tokens)
    assert word(site, separators=[".", "[SEP]", "[CLS]"]) == "separator"
    assert word(site) == "hard"


def test_the_first_key_counts_as_the_sink_even_if_it_is_a_separator():
    tokens = ["[CLS]", *["word"] * (N - 1)]
    first = torch.zeros(N, dtype=torch.long)
    (row,) = classify_heads([make_site(*to_key(first, N), tokens=tokens)], separators=["[CLS]"])
    assert (row.type, row.separator_share) == ("sink", 0)


def test_alignment_follows_a_diagonal_of_the_other_sequence():
    straight = torch.arange(12) * 3 // 2
    tokens = [str(i) for i in range(18)]
    assert word(make_site(*to_key(straight, 18), key_tokens=tokens)) == "alignment"
    assert word(make_site(*to_key(straight.flip(0), 18), key_tokens=tokens)) == "permutation"


def test_a_head_that_sees_one_key_was_forced():
    assert word(make_site(*torch.randn(2, 1, 1, 1, 4))) == "forced"


def test_padding_changes_no_number():
    q, k = torch.randn(2, 1, 2, 30, 8) * 2
    padded_q, padded_k = (torch.cat([x, torch.randn(1, 2, 9, 8)], 2) for x in (q, k))
    tokens = ["a", ".", "b"] * 13
    alone = make_site(q, k, mask=Causal(), tokens=tokens[:30])
    mask = Causal() & Padding(torch.tensor([30]))
    among = make_site(padded_q, padded_k, mask=mask, tokens=tokens)
    both = (classify_heads([site], separators=["."]).to_dicts() for site in (alone, among))
    for one, two in zip(*both, strict=True):
        for name in (
            "self_share",
            "previous_share",
            "offset_share",
            "sink_share",
            "peak",
            "normalized_entropy",
            "separator_share",
        ):
            assert one[name] == pytest.approx(two[name], rel=1e-4), name


def test_padding_on_the_left_changes_no_number_either():
    q, k = torch.randn(2, 1, 2, 30, 8) * 2
    padded_q, padded_k = (torch.cat([torch.randn(1, 2, 9, 8), x], 2) for x in (q, k))
    mask = Causal() & Padding(torch.tensor([39]), left_padding=torch.tensor([9]))
    tokens = ["."] * 9 + [".", "a", "b"] * 10
    alone = classify_heads(
        [make_site(q, k, mask=Causal(), tokens=tokens[9:])], separators=["."]
    ).to_dicts()
    among = classify_heads(
        [make_site(padded_q, padded_k, mask=mask, tokens=tokens)], separators=["."]
    )
    for one, two in zip(alone, among.to_dicts(), strict=True):
        for name in (
            "self_share",
            "previous_share",
            "sink_share",
            "peak",
            "normalized_entropy",
            "separator_share",
            "monotone",
        ):
            assert one[name] == pytest.approx(two[name], rel=1e-4), name


@pytest.mark.parametrize("kind", ["documents", "dense"])
def test_packing_changes_no_number(kind):
    ids = torch.tensor([[0] * 20 + [1] * 20 + [2] * 20])
    q, k = torch.randn(2, 1, 2, 60, 8) * 2
    tokens = [".", "a", "b", "."] * 15
    same = (
        Documents(ids)
        if kind == "documents"
        else DenseMask((ids[:, :, None] == ids[:, None])[:, None])
    )
    packed = make_site(q, k, mask=Causal() & same, tokens=tokens)
    alone = [
        make_site(x, y, mask=Causal(), tokens=tokens[:20])
        for x, y in zip(q.split(20, 2), k.split(20, 2), strict=True)
    ]
    table, parts = (classify_heads(x, separators=["."]) for x in ([packed], alone))
    for row in table:
        rows = [x for x in parts if x.head == row.head]
        for name in ("sink_share", "separator_share", "peak", "self_share"):
            mean = sum(getattr(x, name) for x in rows) / 3
            assert getattr(row, name) == pytest.approx(mean, rel=1e-4), name
    sink = pattern_scores(packed, ["sink"])["sink"]
    per_document = torch.cat([pattern_scores(x, ["sink"])["sink"].score for x in alone], -1)
    assert_close(sink.score, per_document, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "terms",
    [{}, {"mask": Causal()}, {"mask": Causal() & Padding(torch.tensor([9, 14]))},
     {"mask": Causal(), "sinks": torch.tensor([0.5, -1.0, 2.0, 0.1])},
     {"bias": biases.ALiBi(torch.tensor([0.5, 0.1, 0.2, 0.4]))},
     {"mask": DenseMask(torch.randn(1, 4, 14, 14) > -1)}],
)  # fmt: skip
def test_layers_measured_together_have_the_numbers_of_each_alone(terms):
    def site(queries=14):
        q, k = torch.randn(2, 4, queries, 8), torch.randn(2, 2, queries, 8)
        return make_site(q, k, tokens=list("abcab.cabcabcd")[:queries], **terms)

    sites = [site(), site(), site()] + [site(13)] * ("mask" not in terms)
    one = [row for x in sites for row in classify_heads([x], separators=["."])]
    for alone, row in zip(one, classify_heads(sites, separators=["."]), strict=True):
        for name in (f.name for f in fields(row)):
            assert getattr(row, name) == pytest.approx(getattr(alone, name), abs=1e-5), name
    groups = [len(layers) for _, layers in merge_layers(sites)]
    differ_by_head = terms.keys() & {"sinks", "bias"} or "Dense" in repr(terms)
    assert groups[0] == (1 if differ_by_head else 3)


def test_merged_layers_fit_one_tile():
    sites = [make_site(*torch.zeros(2, 4, 300, 2)) for _ in range(7)]
    assert [len(layers) for _, layers in merge_layers(sites)] == [2, 2, 2, 1]


def test_thresholds_are_the_callers_to_move():
    q, k = equal()
    taps = torch.tensor([[0.2, 0.6, 0.2]]).log()
    site = make_site(q, k, bias=Toeplitz(taps), mask=Local(1))
    assert word(site) == "identity"
    assert word(site, thresholds=Thresholds(majority=0.7)) == "local"


def test_a_majority_is_more_than_half_and_other_limits_belong_to_the_type():
    def of(**numbers):
        row = HeadRow(site="a", call=0, head=0, query_count=9, **numbers)
        return classify_head(row)[0]

    assert (of(previous_share=0.5), of(previous_share=0.501)) == ("mixed", "previous")
    assert (of(peak=0.9), of(peak=0.899), of(peak=0.9, distinct=0.9)) == (
        "hard", "mixed", "permutation",
    )  # fmt: skip
    assert (of(normalized_entropy=0.9), of(normalized_entropy=0.899)) == ("diffuse", "mixed")


# induction and duplicate, on repeated tokens


class Copier(torch.nn.Module):
    """A language model whose only head looks `after` places behind what is like its own token."""

    def __init__(self, after: int):
        super().__init__()
        self.after = after

    def forward(self, tokens):
        x = functional.one_hot(tokens, 50)[:, None] * 8 * 50**0.25
        k = torch.roll(x, self.after, -2)  # a key carries the token that stood before it
        return attend(x, k, k, mask=Causal())[0]


@pytest.mark.parametrize(("after", "name"), [(1, "induction"), (0, "duplicate")])
def test_probe_finds_heads_that_copy(after, name):
    found = score_heads(Copier(after), vocab=50, length=16)
    if name == "induction":
        assert found[0].type == "induction"
        assert found[0].induction > 0.8
        assert found[0].duplicate < 0.1
    else:  # it sees itself as well as its twin, so that half of the weight stays
        assert found[0].duplicate == pytest.approx(0.5, abs=0.15)
        assert found[0].induction < 0.1


def test_a_probe_reads_random_tokens_twice():
    model, seen = Copier(1), list[torch.Tensor]()
    model.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    score_heads(model, vocab=50, length=16, batch=3)
    (tokens,) = seen
    assert tokens.shape == (3, 32)
    assert torch.equal(tokens[:, :16], tokens[:, 16:])
    assert len(tokens.unique()) > 20


def test_probe_results_are_in_the_table_of_any_text():
    model = LanguageModel(language_tiny(vocab=20)).eval()
    with look(model) as sight:
        model(torch.arange(12)[None])
    probed = HeadTable(
        [
            HeadRow(
                site="decoder.1.self", call=0, head=2, query_count=9, induction=0.9, duplicate=0.0
            )
        ]
    )
    table = classify_heads(sight, probe=probed)
    assert table["decoder.1.self", 2].type == "induction"
    assert len(table) == 8


def test_random_weights_have_no_induction():
    model = LanguageModel(language_tiny(vocab=50)).eval()
    for row in score_heads(model, length=16):
        assert row.induction < 0.3


# the table


def test_calls_of_one_attention_are_joined_into_one_row():
    layer, x = MultiHeadAttention(8, 2), torch.randn(1, 12, 8)
    with look(layer) as sight:
        layer(x[:, :5], x), layer(x[:, 5:], x)
    assert [row.query_count for row in sight.heads()] == [12, 12]


def test_the_table_is_text_and_plain_data():
    row = HeadRow(
        site="encoder.0.self", call=0, head=1, query_count=3, type="sink", sink_share=0.75
    )
    table = HeadTable([row])
    assert "encoder.0.self" in str(table)
    assert "0.75" in str(table)
    assert table.to_dicts()[0]["sink_share"] == 0.75
    assert table.of_type("sink").rows == [row]
    assert len(table.of_type("hard")) == 0


# errors


@pytest.mark.usefixtures("users_view")
def test_wrong_questions_are_reported():
    with pytest.raises(ShapeError, match="at: needs a site"):
        HeadTable([])["encoder", 0]
    with pytest.raises(ShapeError, match="length, vocab: need"):
        score_heads(LanguageModel(language_tiny(vocab=20)), vocab=1)
    with pytest.raises(ShapeError, match="tokens: needs 3"):
        make_site(torch.zeros(3, 2), torch.zeros(3, 2), tokens=["a"])


def test_heads_need_more_than_a_survey():
    layer = MultiHeadAttention(8, 2)
    with look(layer, survey=["entropy"]) as sight:
        layer(torch.randn(1, 12, 8))
    with pytest.raises(LookError, match="MultiHeadAttention: needs its queries and keys"):
        classify_heads(sight)


def test_a_dense_bias_works_too():
    table = torch.full((1, N, N), -30.0)
    table[0, torch.arange(1, N), torch.arange(N - 1)] = 0
    q, k = equal()
    assert word(make_site(q, k, bias=biases.DenseBias(table))) == "previous"


def test_every_default_statistic_of_a_query_is_a_number_of_a_head():
    site = make_site(torch.randn(2, 9, 4), torch.randn(2, 9, 4))
    table, survey = classify_heads([site]), site.survey()
    assert {*COLUMNS, *MORE_COLUMNS} >= set(QUERY_STATISTICS)
    for name in MORE_COLUMNS:
        expected = getattr(survey, name)[0].mean(-1).tolist()
        assert [row.number(name) for row in table] == pytest.approx(expected)
        assert table.to_dicts()[1][name] == pytest.approx(expected[1])
        assert table.top(1, by=name)[0].number(name) == pytest.approx(max(expected))
