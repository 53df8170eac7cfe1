import pytest
import torch
from torch.testing import assert_close

import regard as rg
from regard.errors import LookError, ShapeError

X = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(1))


class Held:
    """A cache of keys and values, as decoding has."""

    def __init__(self):
        self.k, self.v = [], []

    def __call__(self, layer, k, v):
        self.k.append(k)
        self.v.append(v)
        return torch.cat(self.k, -2), torch.cat(self.v, -2)


def in_steps(layer, x, sizes, **terms):
    cache, done = Held(), 0
    with rg.look(layer) as sight:
        for size in sizes:
            layer(x[:, done : done + size], cache=cache, offset=done, **terms)
            done += size
    return sight


@pytest.mark.parametrize(
    "terms",
    [
        {"mask": rg.Causal()},
        {"mask": rg.Causal() & rg.Local(2)},
        {"mask": rg.Causal() & rg.Padding(torch.tensor([6, 4]))},
        {"mask": rg.Causal(), "bias": rg.ALiBi(rg.ops.alibi_slopes(2))},
        {"mask": rg.Causal(), "bias": rg.RelativeKeys(torch.randn(5, 4))},
    ],
    ids=["causal", "local", "padding", "alibi", "relative"],
)
@pytest.mark.parametrize("sizes", [(1,) * 6, (3, 1, 1, 1), (2, 3, 1)])
def test_steps_joined_are_the_whole_map(terms, sizes):
    layer = rg.nn.MultiHeadAttention(8, 2, rope_theta=100.0)
    steps = in_steps(layer, X, sizes, **terms)
    with rg.look(layer) as once:
        layer(X, **terms)
    joined, whole = steps.join("MultiHeadAttention"), once["MultiHeadAttention"]
    assert len(steps) == len(sizes)
    assert_close(joined.weights(), whole.weights())
    assert_close(joined.window(1, slice(1, 5), slice(2, 6)), whole.window(1)[:, 1:5, 2:6])
    assert_close(joined.out, whole.out)
    ask = ["mean_distance", "self_share", "previous_share", "entropy", "received"]
    for name in ask:
        got, want = (getattr(site.survey(statistics=ask), name) for site in (joined, whole))
        assert_close(got, want, atol=1e-5, rtol=1e-4)


def test_causal_steps_joined_stay_causal_so_that_fast_forms_know_them():
    steps = in_steps(rg.nn.MultiHeadAttention(8, 2), X, (4, 1, 1), mask=rg.Causal())
    assert steps.join("MultiHeadAttention").terms.mask == rg.Causal()


def test_keys_of_all_steps_are_held_once():
    steps = in_steps(rg.nn.MultiHeadAttention(8, 2), X, (1,) * 6, mask=rg.Causal())
    places = {site.k.untyped_storage().data_ptr() for site in steps}
    assert len(places) < 4  # each buffer is twice the one before
    assert [site.keys for site in steps] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("first", [0, 2], ids=["from the start", "with a past"])
def test_recorded_keys_are_safe_from_in_place_cache_writes(first):
    layer, room = rg.nn.MultiHeadAttention(8, 2), torch.zeros(2, 2, 2, 6, 4)
    at = first

    def cache(_, k, v):
        for place, x in zip(room, (k, v), strict=True):
            place[:, :, at : at + 1] = x
        return room[0][:, :, : at + 1], room[1][:, :, : at + 1]

    with torch.no_grad(), rg.look(layer) as sight:
        for _ in range(3):
            layer(X[:, at : at + 1], cache=cache, offset=at)
            at += 1
        kept = [site.k.clone() for site in sight]
        room.fill_(7.0)
    assert all(torch.equal(site.k, k) for site, k in zip(sight, kept, strict=True))


def test_a_site_is_found_by_name_by_path_and_by_call():
    layer = rg.nn.EncoderBlock(8, 2)
    with rg.look(layer) as sight:
        layer(X), layer(X[:, :2])
    assert sight.names == ["self"]
    assert sight["self", 1].queries == sight["self_attention", -1].queries == 2
    assert [site.call for site in sight] == [0, 1]
    assert len(sight) == 2


def test_words_go_where_they_fit():
    model = rg.models.Translator(rg.models.translator_tiny(vocab=10)).eval()
    words = {"source": [["a", "b", "c"], ["d"]], "target": [["x", "y"], ["z", "w"]]}
    with rg.look(model, tokens=words) as sight:
        model(torch.ones(2, 3, dtype=torch.long), torch.ones(2, 2, dtype=torch.long))
    across = sight["decoder.0.cross"]
    assert across.query_tokens == words["target"]
    assert across.key_tokens == [["a", "b", "c"], ["d", "", ""]]
    assert sight["encoder.0.self"].query_tokens == across.key_tokens
    assert sight["decoder.0.self"].key_tokens == words["target"]
    assert sight.with_tokens(["a", "b", "c"])["decoder.0.self"].query_tokens is None


def test_steps_get_their_own_words():
    steps = in_steps(rg.nn.MultiHeadAttention(8, 2), X, (4, 1, 1), mask=rg.Causal())
    named = steps.with_tokens(list("abcdef"))
    assert [site.query_tokens[0] for site in named] == [["a", "b", "c", "d"], ["e"], ["f"]]
    joined = named.join("MultiHeadAttention")
    assert joined.query_tokens == joined.key_tokens == [list("abcdef")] * 2


@pytest.mark.usefixtures("users_view")
def test_errors_list_the_recorded_sites():
    layer = rg.nn.EncoderBlock(8, 2)
    with rg.look(layer) as sight:
        layer(X), layer(X + 1)
    with pytest.raises(LookError, match="needs one of the sites, got 'slef'; try 'self'"):
        sight["slef"]
    with pytest.raises(LookError, match="needs one of the sites, got .*; try 'self'"):
        sight[sight.sites[0]]
    with pytest.raises(LookError, match=r"'self' ran 2 times, got none; try sight\['self', 0\] or"):
        sight["self"]
    with pytest.raises(LookError, match="call: needs less than the 2 calls of 'self', got 5"):
        sight["self", 5]
    with pytest.raises(LookError, match="needs calls that continue each other"):
        sight.join("self")
    with pytest.raises(
        ShapeError, match="tokens: needs a list of strings, got 'ab'; try text.split"
    ):
        sight.with_tokens("ab")
    with pytest.raises(ShapeError, match="tokens: needs source and target, got 'sauce'"):
        sight.with_tokens({"sauce": ["a"]})
