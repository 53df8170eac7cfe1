"""Constraints: forbidden tokens never appear, and required ones do."""

import re
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_searches import END, VOCAB, Table, firsts, sources, translator
from torch.testing import assert_close

from regard.decode import (
    AllowedTokens,
    AllowedWords,
    ForcedPrefix,
    MinNewTokens,
    Sampling,
    SuppressTokens,
    beam,
    greedy,
    make_stepper,
    sample,
)
from regard.errors import ConfigError, ShapeError

SOME = ["sinusoidal", "rotary", "lstm-luong", "gru-hybrid"]
SEARCHES = {
    "greedy": greedy,
    "beam": lambda *args, **given: beam(*args, **given, width=3, n_best=3),
    "sample": lambda *args, **given: sample(*args, **given, sampling=Sampling(temperature=3.0)),
}
each_search = pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
some_translators = pytest.mark.parametrize("name", SOME)


def answers(name, search, *rules, limit=6):
    model, (source, lengths) = translator(name), sources()
    stepper = make_stepper(model)
    state = stepper.start(source, lengths)
    return search(stepper, state, firsts(4), end=END, max_new_tokens=limit, constraints=rules)


# ---- worked numbers


def test_a_constraint_changes_the_tokens_but_not_their_log_probability():
    table = Table([0, 0.6, 0, 0.4], [0, 0, 1, 0], [0, 0, 1, 0], [0, 0, 1, 0])
    first, state = torch.tensor([0]), table.start([0])
    found = greedy(table, state, first, end=2, max_new_tokens=3, constraints=[SuppressTokens([1])])
    assert found.to_lists() == [[3]]
    assert_close(
        found.log_prob.exp(), torch.tensor([0.4]).double()
    )  # not 1, though nothing else may
    wide = beam(
        table, state, first, end=2, max_new_tokens=3, width=3, constraints=[ForcedPrefix([3])]
    )
    assert wide.to_lists() == [[3]]
    assert_close(wide.log_prob.exp(), torch.tensor([[0.4]]).double())


# ---- properties


@some_translators
@each_search
def test_a_forced_prefix_is_generated_and_continued(name, search):
    found = answers(name, search, ForcedPrefix([4, 6, 4]))
    assert all(row[:3] == [4, 6, 4] for row in found.to_lists())
    assert found.log_prob.isfinite().all()


@some_translators
@each_search
def test_each_row_has_its_own_prefix(name, search):
    rows = [[4], [5, 6], [], [6, 6, 6]]
    found = answers(name, search, ForcedPrefix(rows)).to_lists()
    each = len(found) // 4
    for n, row in enumerate(found):
        want = rows[n // each]
        assert row[: len(want)] == want


@some_translators
@each_search
def test_a_token_that_is_not_allowed_never_appears(name, search):
    for rule in (SuppressTokens([4, 5]), AllowedTokens([0, 1, 3, 6], end=END)):
        found = answers(name, search, rule, limit=8).to_lists()
        assert not {4, 5} & {token for row in found for token in row}


@some_translators
@each_search
def test_only_allowed_words_are_generated(name, search):
    words = [[4], [4, 5, 6], [6, 3]]
    found = answers(name, search, AllowedWords(words, end=END), limit=9)
    for row, ended in zip(found.to_lists(), found.ended.flatten().tolist(), strict=True):
        text = "".join(map(str, row))
        if not ended:  # cut at the limit, perhaps inside a word
            text = re.sub("(45|6)$", "", text)
        assert re.fullmatch("(4|456|63)*", text)


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), min_size=1, max_size=4))
def test_the_trie_matches_a_search_over_all_words(words):
    rule, end = AllowedWords(words, end=4), 4
    sums = {(): True}
    for n in range(1, 4):
        sums |= {tuple(sum(some, [])): True for some in product(words, repeat=n)}
    for n in range(3):
        for written in product(range(4), repeat=n):
            may = rule(torch.tensor([written], dtype=torch.long).reshape(1, n), 5)[0]
            begun = [s for s in sums if s[:n] == written]
            if not begun:
                assert may.nonzero().flatten().tolist() == [end]  # out of the tree: only the end
                continue
            want = {s[n] for s in begun if len(s) > n} | ({end} if written in sums else set())
            # sums of three words are as long as is needed to see what may follow two tokens
            assert set(may.nonzero().flatten().tolist()) == want


def test_the_end_is_allowed_after_the_least_number_of_tokens_and_not_before():
    rule = MinNewTokens(3, end=0)
    masks = [rule(torch.ones(1, n, dtype=torch.long), 2) for n in range(5)]
    assert [None if x is None else x.tolist() for x in masks] == [[False, True]] * 3 + [None] * 2


@each_search
def test_an_answer_has_the_least_length(search):
    found = answers("sinusoidal", search, MinNewTokens(5, end=END))
    assert (found.lengths >= 5).all()


def test_constraints_are_combined():
    rules = (
        ForcedPrefix([4]),
        SuppressTokens([5]),
        MinNewTokens(4, end=END),
        AllowedTokens([3, 4, 5], end=END),
    )
    for row in answers("rotary", SEARCHES["beam"], *rules).to_lists():
        assert row[0] == 4
        assert set(row) <= {3, 4}
        assert len(row) >= 4


def test_a_constrained_beam_finds_the_best_allowed_sequence():
    model, source = translator("sinusoidal", vocab=5), torch.tensor([[3, 0, 1]])
    limit, alphabet = 3, (0, 1, 4)  # 3 is forbidden, 2 ends
    every = [(*w, END) for n in range(limit) for w in product(alphabet, repeat=n)]
    every += product(alphabet, repeat=limit)
    padded = torch.tensor([[1, *words, *[0] * (limit - len(words))] for words in every])
    rows = model.decode(padded[:, :-1], model.encode(source.expand(len(every), -1)))
    rows = rows.log_softmax(-1)
    score = {w: rows[n, range(len(w)), list(w)].sum().item() for n, w in enumerate(every)}
    best = max(every, key=lambda w: score[w])
    stepper = make_stepper(model)
    given = {"end": END, "max_new_tokens": limit, "width": len(every), "length_penalty": 0.0}
    found = beam(
        stepper, stepper.start(source), firsts(1), constraints=[SuppressTokens([3])], **given
    )
    assert found.to_lists() == [[t for t in best if t != END]]
    assert_close(found.log_prob.item(), score[best])


# ---- errors


@pytest.mark.usefixtures("users_view")
def test_contradictory_constraints_raise():
    with pytest.raises(
        ConfigError, match="constraints: need to leave a token after 1 tokens, got none"
    ):
        answers("sinusoidal", greedy, ForcedPrefix([4, 5]), SuppressTokens([5]))
    with pytest.raises(
        ConfigError, match="constraints: need to leave a token after 0 tokens, got none"
    ):
        answers("sinusoidal", SEARCHES["beam"], ForcedPrefix([4]), SuppressTokens([4]))
    with pytest.raises(ConfigError, match=f"tokens: need 0 to {VOCAB - 1}, .* got 99"):
        answers("sinusoidal", greedy, SuppressTokens([99]))
    with pytest.raises(ConfigError, match="words: needs one or more, none of them empty, got"):
        AllowedWords([[4], []], end=END)
    with pytest.raises(ShapeError, match="prefix: needs one row or 4, got 3"):
        answers("sinusoidal", greedy, ForcedPrefix([[4], [5], [6]]))
