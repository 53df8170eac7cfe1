"""Descriptions of maps follow from their statistics."""

import pytest
import torch

from regard.errors import ShapeError
from regard.inspection import describe_head, make_site
from regard.inspection.heads.descriptions import describe_heads
from regard.ops import Causal, Padding, Toeplitz

X = torch.tensor([[1.0, -1, 0, 2], [0, -1, 2, 1], [-2, 2, -1, 0]])
W_Q = torch.tensor([[0, 1], [1, 0], [-0.5, 0], [1, 1]])
W_K = torch.tensor([[1, -0.5], [0, 1], [0.5, -0.5], [1, 0.5]])


# worked numbers


@pytest.mark.parametrize("scale", [1.0, None])
def test_fx1_description_matches_the_paper(scale):
    site = make_site(X @ W_Q, X @ W_K, tokens=["1", "2", "3"], scale=scale)
    said = describe_head(site)
    assert said.startswith("1 looks at 3, 2 at 3, 3 at 1 then 2. No token looks at itself.")
    received = site.weights()[0, 0, :, 2].sum().item()
    assert said.endswith(f" 3 receives {received:.2f} of 3.00 in all.")


def test_fx1_with_a_causal_mask():
    said = describe_head(make_site(X @ W_Q, X @ W_K, tokens=["1", "2", "3"], mask=Causal()))
    assert said.startswith("1 looks at 1, 2 at 1 and 2, 3 at 1 then 2. Only 1 and 2 look at them")


# properties


def test_equal_weights_are_joined_by_and_others_by_then():
    q = torch.ones(1, 1)
    equal = make_site(q, torch.tensor([[0.0], [0.0]]), tokens=["q"], key_tokens=["a", "b"])
    assert describe_head(equal) == "q looks at a and b."
    uneven = make_site(q, torch.tensor([[1.0], [0.0]]), tokens=["q"], key_tokens=["a", "b"])
    assert describe_head(uneven) == "q looks at a then b."


def test_every_token_may_look_at_itself_only_or_not_only():
    eye = torch.eye(3) * 9
    assert "Every token looks only at itself." in describe_head(make_site(eye, eye))
    both = eye + eye.roll(1, 0)
    assert "Every token looks at itself." in describe_head(make_site(both, eye))


def test_a_key_is_named_from_a_tenth_on_and_at_most_three_are():
    shares = torch.tensor([[0.35], [0.3], [0.2], [0.15]]).log()
    site = make_site(torch.ones(1, 1), shares, tokens=["q"], key_tokens=list("abcd"))
    assert describe_head(site) == "q looks at a then b then c."
    shares = torch.tensor([[0.85], [0.09], [0.06]]).log()
    site = make_site(torch.ones(1, 1), shares, tokens=["q"], key_tokens=list("abc"))
    assert describe_head(site) == "q looks at a."


def test_a_receiver_is_named_when_it_has_more_than_half_of_all():
    site = make_site(torch.zeros(3, 2), torch.zeros(3, 2))
    assert "receives" not in describe_head(site)
    barely = torch.tensor([[0.51], [0.49]]).log()
    site = make_site(torch.ones(4, 1), barely, key_tokens=["a", "b"])
    assert describe_head(site).endswith(" a receives 2.04 of 4.00 in all.")


def test_cached_queries_know_their_own_place():
    eye = torch.eye(5) * 9
    site = make_site(eye[3:], eye, offset=3, mask=Causal())
    assert describe_head(site) == "3 looks at 3, 4 at 4. Every token looks only at itself."


def test_a_query_with_no_heavy_key_looks_at_nothing_in_particular():
    site = make_site(torch.zeros(1, 2), torch.zeros(30, 2))
    assert describe_head(site) == "0 looks at nothing in particular."


def test_a_query_that_is_padding_sees_nothing():
    eye = torch.eye(3) * 9
    mask = Causal() & Padding(torch.tensor([3]), left_padding=torch.tensor([1]))
    said = describe_head(make_site(eye, eye, tokens=["-", "a", "b"], mask=mask))
    assert said.startswith("“-” sees nothing, a looks at a, b at b.")


def test_a_repeated_token_is_described_with_its_position():
    site = make_site(torch.zeros(3, 2), torch.zeros(3, 2), tokens=["the", "cat", "the"])
    assert describe_head(site).startswith("the (0) looks at the (0) and cat and the (2), cat at")


def test_marks_are_put_in_quotes():
    eye = torch.eye(2) * 9
    assert describe_head(make_site(eye, eye, tokens=["a", "."])).startswith(
        "a looks at a, “.” at “.”."
    )


def test_a_long_map_is_described_by_its_statistics():
    table = torch.tensor([[0.0] * 4 + [30.0] + [0.0] * 6])
    q = torch.zeros(40, 2)
    said = describe_head(make_site(q, q, bias=Toeplitz(table)))
    assert said.startswith("A query looks at the token before it: 1.00")


def test_descriptions_use_the_numbers_of_the_survey():
    keys = torch.zeros(30, 2)
    keys[7, 0] = 9.0
    site = make_site(torch.tensor([[9.0, 0.0]]).repeat(30, 1), keys)
    received = site.survey(statistics=["received"]).received[0, 0]
    assert f"7 receives {received[7]:.2f} of 30.00 in all." in describe_head(site)


def test_every_head_and_every_sequence_has_its_own_words():
    q, k = torch.randn(2, 2, 3, 4, 8) * 9
    site = make_site(q, k)
    for batch in range(2):
        for head, said in enumerate(describe_heads(site, batch)):
            alone = make_site(q[batch, head], k[batch, head])
            assert said == describe_head(alone)


def test_every_type_has_a_phrase_that_its_row_fills():
    from regard.inspection import HeadRow
    from regard.inspection.heads.descriptions import TYPE_SENTENCES, _describe_type

    for name in TYPE_SENTENCES:
        row = HeadRow(
            site="a", call=0, head=0, query_count=9, type=name, induction=0.5, duplicate=0.5
        )
        assert "{" not in _describe_type(row)


# errors


@pytest.mark.usefixtures("users_view")
def test_a_missing_head_or_sequence_raises():
    site = make_site(*torch.randn(2, 3, 4))
    with pytest.raises(ShapeError, match="head: needs less than 1, got 1"):
        describe_head(site, 1)
    with pytest.raises(ShapeError, match="batch: needs less than 1, got 2"):
        describe_head(site, 0, 2)
