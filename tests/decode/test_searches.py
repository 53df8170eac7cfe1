"""Step-by-step decoding equals the full forward, and a search finds the best it claims."""

from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from regard import models
from regard.decode import beam, greedy, last_tokens, length_penalty, make_stepper
from regard.decode.search.beam import grouped_topk
from regard.errors import ConfigError, ShapeError

VOCAB, START, END = 7, 1, 2
SIZES = {"dim": 16, "heads": 2, "dropout": 0.0}
TRANSLATORS = {
    "sinusoidal": {},
    "learned": {"positions": "learned", "max_positions": 20},
    "rotary": {"positions": "none", "rope_theta": 100.0, "kv_heads": 1},
    "buckets": {"positions": "none", "relative_bias": "buckets"},
    "alibi": {"positions": "none", "relative_bias": "alibi", "sinks": True},
}
RECURRENT = [
    (c, a) for c in ("rnn", "gru", "lstm") for a in ("none", "bahdanau", "luong", "hybrid")
]
LANGUAGE = TRANSLATORS | {"window": {"window": 3}, "windows": {"window": (3, None)}}


def lively(model: torch.nn.Module) -> torch.nn.Module:
    """Weights large enough that the answers differ from each other."""
    for p in model.parameters():
        p.data *= 2
    return model.double().eval()


def translator(name: str, vocab: int = VOCAB) -> torch.nn.Module:
    if name in TRANSLATORS:
        config = models.translator_tiny(vocab, **SIZES, **TRANSLATORS[name])
        return lively(models.Translator(config))
    cell, attention = name.split("-")
    sizes = {"cell": cell, "attention": attention, "dim": 16, "hidden": 16, "layers": 2}
    return lively(models.RecurrentTranslator(models.recurrent_tiny(vocab, dropout=0.0, **sizes)))


def language(name: str) -> torch.nn.Module:
    return lively(models.LanguageModel(models.language_tiny(VOCAB, **SIZES, **LANGUAGE[name])))


ALL = [*TRANSLATORS, *("-".join(names) for names in RECURRENT)]
each_translator = pytest.mark.parametrize("name", ALL)
each_language = pytest.mark.parametrize("name", LANGUAGE)


def sources(batch: int = 4, time: int = 5) -> tuple[Tensor, Tensor]:
    return torch.randint(3, VOCAB, (batch, time)), torch.tensor([5, 3, 1, 4])[:batch]


def firsts(batch: int) -> Tensor:
    return torch.full((batch,), START)


def by_hand(model: torch.nn.Module, source: Tensor, limit: int) -> list[int]:
    """Greedy without any cache: the whole model again for every token."""
    written = [START]
    while len(written) <= limit:
        token = int(model(source, torch.tensor([written]))[0, -1].argmax())
        if token == END:
            break
        written.append(token)
    return written[1:]


# ---- worked numbers


class Table:
    """A model of which every probability is known: p(next | last) by a table."""

    def __init__(self, *rows: list[float]):
        self.table = torch.tensor(rows).double().log()

    def start(self, tokens, lengths=None):
        return torch.zeros(len(tokens))

    def step(self, tokens, state):
        return self.table[tokens], state

    def select(self, state, rows):
        return state[rows]


def test_a_beam_of_two_finds_a_sequence_that_greedy_misses():
    # 0 → 1 looks best (0.6), but then all is open (0.5 · 0.5); 0 → 3 is 0.4 and sure to end
    table = Table([0, 0.6, 0, 0.4], [0, 0.5, 0.5, 0], [0, 0, 1, 0], [0, 0, 1, 0])
    state, first = table.start([0]), torch.tensor([0])
    short = greedy(table, state, first, end=2, max_new_tokens=2)
    assert short.to_lists() == [[1, 1]]
    assert_close(short.log_prob.exp(), torch.tensor([0.3]).double())
    wide = beam(table, state, first, end=2, max_new_tokens=2, width=2, length_penalty=0.0)
    assert wide.to_lists() == [[3]]
    assert_close(wide.log_prob.exp(), torch.tensor([[0.4]]).double())


def test_an_answer_that_has_ended_is_filled_up_while_others_go_on():
    table = Table([0, 1, 0, 0], [0, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 0])  # 0 → 1 → 3 → end → 1 …
    answer = greedy(table, table.start([0, 0]), torch.tensor([0, 3]), end=2, max_new_tokens=4)
    assert answer.tokens.tolist() == [[1, 3, 2], [2, 2, 2]]
    assert answer.to_lists() == [[1, 3], []]


@given(st.integers(1, 3), st.integers(500, 700), st.integers(0, 9))
def test_the_best_of_groups_are_the_best_of_all(k, count, seed):
    x = torch.randn(2, count, generator=torch.Generator().manual_seed(seed))
    x[1] = x[1].sort().values  # the best are in the rest, which is no whole group
    for got, want in zip(grouped_topk(x, k), x.topk(k), strict=True):
        assert torch.equal(got, want)


def test_the_length_penalty_of_a_long_answer():
    assert_close(length_penalty(torch.tensor([13.0]), 0.5), torch.tensor([3.0]).sqrt())


def test_a_penalty_turns_the_choice_to_the_longer_answer():
    # [end]: 0.5; [1, end]: 0.5 · 0.9 = 0.45. log 0.45 / (7/6) = -0.684 > log 0.5 = -0.693
    table = Table([0, 0.5, 0.5, 0], [0, 0, 0.9, 0.1], [0, 0, 1, 0], [0, 0, 1, 0])
    state, first, given = (
        table.start([0]),
        torch.tensor([0]),
        {"end": 2, "max_new_tokens": 2, "width": 3},
    )
    assert beam(table, state, first, length_penalty=0.0, **given).to_lists() == [[]]
    assert beam(table, state, first, length_penalty=1.0, **given).to_lists() == [[1]]


# ---- properties


@each_translator
def test_cached_logits_are_the_uncached_ones(name):
    model, (source, lengths), target = translator(name), sources(), torch.randint(VOCAB, (4, 6))
    stepper = make_stepper(model)
    state, steps = stepper.start(source, lengths), []
    for token in target.unbind(1):
        logits, state = stepper.step(token, state)
        steps.append(logits)
    assert_close(torch.stack(steps, 1), model(source, target, lengths), atol=1e-5, rtol=0)


@each_language
def test_cached_logits_after_prompts_of_several_lengths_are_the_uncached_ones(name):
    model, (prompt, lengths), more = language(name), sources(), torch.randint(VOCAB, (4, 3))
    stepper = make_stepper(model)
    state, token, steps = stepper.start(prompt, lengths), last_tokens(prompt, lengths), []
    for after in (*more.unbind(1), None):
        logits, state = stepper.step(token, state)
        steps.append(logits)
        token = after
    for n, (row, length) in enumerate(zip(prompt, lengths, strict=True)):
        whole = torch.cat([row[:length], more[n]])[None]
        want = model(whole)[0, length - 1 :]
        assert_close(torch.stack(steps, 1)[n], want, atol=1e-5, rtol=0)


@each_translator
def test_cached_greedy_of_a_batch_matches_uncached_greedy_of_each_row(name):
    model, (source, lengths) = translator(name), sources(2)
    stepper = make_stepper(model)
    answer = greedy(stepper, stepper.start(source, lengths), firsts(2), end=END, max_new_tokens=6)
    alone = [by_hand(model, row[None, :n], 6) for row, n in zip(source, lengths, strict=True)]
    assert answer.to_lists() == alone


@each_translator
def test_a_beam_of_one_is_greedy(name):
    model, (source, lengths) = translator(name), sources()
    stepper = make_stepper(model)
    state = stepper.start(source, lengths)
    one = beam(stepper, state, firsts(4), end=END, max_new_tokens=6, width=1, length_penalty=1.0)
    want = greedy(stepper, state, firsts(4), end=END, max_new_tokens=6)
    assert one.to_lists() == want.to_lists()
    assert_close(one.log_prob[:, 0], want.log_prob)
    assert torch.equal(one.ended[:, 0], want.ended)


@pytest.mark.parametrize("name", ["sinusoidal", "rotary", "lstm-luong", "gru-hybrid"])
def test_a_beam_does_not_depend_on_the_batch(name):
    model, (source, lengths) = translator(name), sources()
    stepper, given = make_stepper(model), {"end": END, "max_new_tokens": 6, "width": 3, "n_best": 3}
    together = beam(stepper, stepper.start(source, lengths), firsts(4), **given)
    for n, length in enumerate(lengths):
        alone = beam(stepper, stepper.start(source[n : n + 1, :length]), firsts(1), **given)
        assert together.to_lists()[3 * n : 3 * n + 3] == alone.to_lists()
        assert_close(together.log_prob[n], alone.log_prob[0])


@pytest.mark.parametrize("penalty", [0.0, 1.0])
@pytest.mark.parametrize("name", ["sinusoidal", "alibi", "rnn-none", "lstm-bahdanau", "gru-hybrid"])
def test_a_beam_as_wide_as_all_sequences_finds_the_best(name, penalty):
    model, limit, source = translator(name, vocab=4), 3, torch.tensor([[3, 0, 1, 3]])
    alphabet = [t for t in range(4) if t != END]
    ended = [(*w, END) for n in range(limit) for w in product(alphabet, repeat=n)]
    every = [*ended, *product(alphabet, repeat=limit)]
    padded = torch.tensor([[START, *words, *[0] * (limit - len(words))] for words in every])
    memory = model.encode(source.expand(len(every), -1))
    rows = model.decode(padded[:, :-1], memory).log_softmax(-1)
    log_probs = {w: rows[n, range(len(w)), list(w)].sum().item() for n, w in enumerate(every)}
    ranked = sorted(every, key=lambda w: -log_probs[w] / ((5 + len(w)) / 6) ** penalty)
    stepper = make_stepper(model)
    state = stepper.start(source)
    given = {
        "end": END,
        "max_new_tokens": limit,
        "width": len(every),
        "length_penalty": penalty,
        "n_best": 5,
    }
    found = beam(stepper, state, firsts(1), **given)
    assert found.to_lists() == [[t for t in words if t != END] for words in ranked[:5]]
    assert_close(found.log_prob[0].tolist(), [log_probs[w] for w in ranked[:5]])


def test_one_encoding_serves_two_first_tokens():
    model, (source, lengths) = translator("sinusoidal"), sources(2)
    stepper = make_stepper(model)
    state = stepper.start(source, lengths)
    both = stepper.select(state, torch.tensor([0, 0, 1, 1]))
    together = greedy(stepper, both, torch.tensor([3, 4, 3, 4]), end=END, max_new_tokens=5)
    for n, token in enumerate((3, 4)):
        apart = greedy(stepper, state, torch.full((2,), token), end=END, max_new_tokens=5)
        assert together.to_lists()[n::2] == apart.to_lists()


# ---- errors


@pytest.mark.usefixtures("users_view")
def test_invalid_searches_raise():
    model = translator("sinusoidal")
    stepper = make_stepper(model)
    state = stepper.start(sources()[0])
    with pytest.raises(ConfigError, match="max_new_tokens: needs 1 token or more, got 0"):
        greedy(stepper, state, firsts(4), end=END, max_new_tokens=0)
    with pytest.raises(ConfigError, match="n_best: needs 1 to width=2, got 3; try a wider beam"):
        beam(stepper, state, firsts(4), end=END, max_new_tokens=3, width=2, n_best=3)
    with pytest.raises(ConfigError, match="model: needs evaluation mode, got training"):
        make_stepper(model.train())
    with pytest.raises(ConfigError, match="model: needs a Translator, .* got Linear"):
        make_stepper(torch.nn.Linear(2, 2).eval())
    with pytest.raises(ShapeError, match=r"lengths: needs 1 to 5, .* got \[5, 0\]"):
        make_stepper(language("sinusoidal")).start(sources(2)[0], torch.tensor([5, 0]))
