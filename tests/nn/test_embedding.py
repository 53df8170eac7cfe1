"""The input embedding: the sum of its parts, and its maximum length."""

import pytest
import torch
from torch.testing import assert_close

from regard.errors import ConfigError, ShapeError
from regard.nn import TokenEmbedding
from regard.ops import sinusoidal


def test_token_zero_at_position_zero_by_hand():
    layer = TokenEmbedding(3, 4)
    with torch.no_grad():
        layer.token_embeddings[:] = torch.arange(12.0).view(3, 4)
    want = [2 * 4.0 + 0, 2 * 5.0 + 1, 2 * 6.0 + 0, 2 * 7.0 + 1]  # √4 · row, then sin 0, cos 0
    assert layer(torch.tensor([[1]]))[0, 0].tolist() == want


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "none"])
def test_the_embedding_is_the_sum_of_its_parts(positions):
    layer = TokenEmbedding(9, 4, positions=positions, segments=2)
    tokens, kinds = torch.randint(0, 9, (2, 5)), torch.randint(0, 2, (2, 5))
    parts = layer.parts(tokens, segments=kinds)
    assert ("position" in parts) == (positions != "none")
    assert_close(layer(tokens, segments=kinds), sum(parts.values()))


def test_an_offset_continues_where_the_last_piece_ended():
    layer, tokens = TokenEmbedding(9, 4), torch.randint(0, 9, (1, 6))
    pieces = [layer(tokens[:, :4]), layer(tokens[:, 4:], offset=4)]
    assert_close(torch.cat(pieces, 1), layer(tokens))


def test_sinusoids_match_the_paper_at_any_length():
    parts = TokenEmbedding(9, 4, max_positions=2).parts(torch.zeros(1, 7, dtype=torch.long))
    assert_close(parts["position"], sinusoidal(torch.arange(7), 4).float())


def test_nothing_in_nothing_out():
    assert TokenEmbedding(9, 4, positions="learned")(torch.zeros(2, 0).long()).shape == (2, 0, 4)


def test_a_norm_after_the_sum():
    x = TokenEmbedding(9, 64, norm=True)(torch.tensor([[1, 2]]))
    assert_close(x.mean(-1), torch.zeros(1, 2), atol=1e-6, rtol=0)


def test_invalid_embeddings_raise(users_view):
    layer = TokenEmbedding(9, 4, positions="learned", max_positions=3)
    with pytest.raises(ShapeError, match="positions: needs at most 2, .* got 3; try a shorter"):
        layer(torch.zeros(1, 4).long())
    with pytest.raises(ShapeError, match="tokens: needs 0 … 8, the vocabulary, got 9"):
        layer(torch.tensor([[9]]))
    with pytest.raises(ShapeError, match="got -1"):
        layer(torch.tensor([[-1]]))
    with pytest.raises(ConfigError, match="positions: needs sinusoidal, learned or none"):
        TokenEmbedding(9, 4, positions="rotary")
