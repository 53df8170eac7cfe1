"""The recurrent translator: every cell with every attention, whole targets and step by step."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from regard.errors import ConfigError, ShapeError
from regard.models import RecurrentTranslator, load, recurrent_small, recurrent_tiny, save
from regard.ops.intercept import intercepting

CELLS, ATTENTIONS = ["rnn", "gru", "lstm"], ["none", "bahdanau", "luong", "hybrid"]
cells, attentions = st.sampled_from(CELLS), st.sampled_from(ATTENTIONS)


def model_of(cell: str, attention: str, layers: int = 1, **changes) -> RecurrentTranslator:
    sizes = {"dim": 6, "hidden": 8, "layers": layers, "dropout": 0.0} | changes
    config = recurrent_tiny(vocab=11, cell=cell, attention=attention, **sizes)
    return RecurrentTranslator(config).double()


def tokens(*sizes: int) -> Tensor:
    return torch.randint(0, 11, sizes)


# ---- worked numbers


def test_parameters_of_the_tiny_model():
    model = RecurrentTranslator(recurrent_tiny(vocab=10))
    gru = lambda dim, hidden: 3 * hidden * (dim + hidden + 2)  # noqa: E731
    want = (
        10 * 64  # one table for source, target and readout
        + 2 * gru(64, 32)  # encoder, half of 64 a direction
        + gru(64, 64)  # decoder
        + 64 * 64  # the general score
        + 2 * 64 * 64  # mixing answer and state
        + 64 * 64
        + 64  # to the readout
        + 10  # its bias
    )
    assert sum(p.numel() for p in model.parameters()) == want


def test_the_decoder_starts_from_both_ends_of_the_source():
    model = model_of("lstm", "luong", layers=2)
    source = tokens(2, 5)
    _, last = model.encoder(model.source_embedding(source))
    h, c = model.start(model.encode(source))
    for layer in range(2):
        for mine, theirs in ((h, last[0]), (c, last[1])):
            both = torch.cat([theirs[:, 2 * layer], theirs[:, 2 * layer + 1]], -1)
            assert torch.equal(mine[:, layer], both)


# ---- properties


@settings(max_examples=12)
@given(cells, attentions, st.integers(1, 2), st.booleans())
def test_a_known_target_is_read_as_step_by_step(cell, attention, layers, ragged):
    model = model_of(cell, attention, layers)
    source, target = tokens(3, 5), tokens(3, 4)
    lengths = torch.tensor([5, 2, 4]) if ragged else None
    logits = model(source, target, lengths)
    memory = model.encode(source, lengths)
    state = model.start(memory)
    for t in range(4):
        now, state = model.step(target[:, t], state, memory)
        assert_close(now, logits[:, t])


@settings(max_examples=12)
@given(cells, attentions, st.integers(1, 2), st.data())
def test_padding_changes_nothing(cell, attention, layers, data):
    model = model_of(cell, attention, layers)
    lengths = [data.draw(st.integers(1, 5)) for _ in range(2)]
    source, target = tokens(2, 5), tokens(2, 3)
    logits = model(source, target, torch.tensor(lengths))
    for row, length in enumerate(lengths):
        alone = model(source[row : row + 1, :length], target[row : row + 1])
        assert_close(logits[row], alone[0])


@given(cells, attentions)
def test_one_encoding_serves_several_targets(cell, attention):
    model = model_of(cell, attention)
    source, targets = tokens(1, 5), tokens(3, 4)
    memory = model.encode(source)
    first = model.decode(targets[:1], memory)
    assert torch.equal(model.decode(targets[:1], memory), first)
    together = model.decode(targets, memory.select(torch.zeros(3, dtype=torch.long)))
    assert_close(together[0], first[0])
    assert_close(together[2], model(source, targets[2:])[0])


@given(cells, attentions)
def test_a_search_may_reorder_states(cell, attention):
    model = model_of(cell, attention)
    source, target = tokens(2, 5), tokens(2, 2)
    memory, swap = model.encode(source), torch.tensor([1, 0])
    _, state = model.step(target[:, 0], model.start(memory), memory)
    straight, _ = model.step(target[:, 1], state, memory)
    turned = tuple(s[swap] for s in state)
    swapped, _ = model.step(target[swap, 1], turned, memory.select(swap))
    assert_close(swapped[swap], straight)


@given(cells, attentions)
def test_the_future_of_the_target_cannot_reach_its_past(cell, attention):
    model = model_of(cell, attention)
    source, target = tokens(2, 5), tokens(2, 4)
    before = model(source, target)
    target[:, 2:] = 0
    assert_close(model(source, target)[:, :2], before[:, :2])


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_calls_at_the_interception_point(attention):
    """None asks nothing, Bahdanau once a token, Luong once; a hybrid once a step of each side."""
    calls = []

    def watch(call, proceed):
        calls.append(call.k.shape[-2])
        return proceed(call)

    with intercepting(watch):
        model_of("gru", attention)(tokens(1, 5), tokens(1, 3))
    past = [1, 2, 3, 4] + [1, 2]
    want = {"none": [], "bahdanau": [5, 5, 5], "luong": [5], "hybrid": [*past, 5]}
    assert calls == want[attention]


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_every_weight_gets_a_gradient(cell, attention):
    model = model_of(cell, attention, layers=2)
    model(tokens(2, 5), tokens(2, 4)).sum().backward()
    without = [name for name, p in model.named_parameters() if p.grad is None]
    assert not without


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_it_learns_to_copy(attention):
    model = model_of("gru", attention, dim=16, hidden=32).float()
    adam = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(60):
        source = torch.randint(1, 11, (16, 3))
        target = F.pad(source, (1, 0))[:, :-1]
        loss = F.cross_entropy(model(source, target).flatten(0, 1), source.flatten())
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]


@pytest.mark.parametrize(
    "changes", [{}, {"tied": False}, {"shared_embedding": False, "source_vocab": 7}]
)
def test_a_loaded_model_gives_the_same_outputs(tmp_path, changes):
    model = RecurrentTranslator(recurrent_tiny(vocab=11, **changes)).eval()
    again = load(save(model, tmp_path))
    source, target = torch.randint(0, 7, (2, 5)), tokens(2, 3)
    assert torch.equal(again(source, target), model(source, target))


def test_presets_differ_as_they_say():
    config = recurrent_small(vocab=9, attention="bahdanau")
    assert (config.cell, config.layers, config.attention) == ("lstm", 2, "bahdanau")


# ---- errors


@pytest.mark.usefixtures("users_view")
def test_error_messages():
    with pytest.raises(ConfigError, match="cell: needs one of rnn, gru, lstm, got 'grru'"):
        recurrent_tiny(vocab=11, cell="grru")
    with pytest.raises(ConfigError, match="attention: needs one of none, bahdanau, luong, hybrid"):
        recurrent_tiny(vocab=11, attention="self")
    with pytest.raises(ConfigError, match="target_vocab: needs source_vocab=11 for a shared"):
        recurrent_tiny(vocab=11, target_vocab=12)
    with pytest.raises(ConfigError, match="hidden: needs an even number, half per .*, got 7"):
        recurrent_tiny(vocab=11, hidden=7)
    with pytest.raises(ConfigError, match="dropout: needs 0 ≤ rate < 1, got 1"):
        recurrent_tiny(vocab=11, dropout=1)
    with pytest.raises(ConfigError, match="layers: needs a whole number of 1 or more, got 0"):
        recurrent_tiny(vocab=11, layers=0)
    model = model_of("gru", "luong")
    with pytest.raises(ShapeError, match="x: needs at least one time step, got 0"):
        model(tokens(2, 0), tokens(2, 3))
    with pytest.raises(ShapeError, match="lengths: needs 0 to time=5, got 1 to 6"):
        model(tokens(2, 5), tokens(2, 3), torch.tensor([1, 6]))
    with pytest.raises(ShapeError, match="tokens: needs 0 … 10, the vocabulary, got 99"):
        model(tokens(2, 5), torch.full((2, 3), 99))
