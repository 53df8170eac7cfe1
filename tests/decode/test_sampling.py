"""Samples come from the filtered distribution and do not depend on the rest of the batch."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_searches import END, Table, firsts, language, sources, translator
from torch.testing import assert_close

from regard.decode import (
    Sampling,
    beam,
    greedy,
    last_tokens,
    make_stepper,
    sample,
    sampling_distribution,
    stream,
)
from regard.decode.sampling import row_uniforms, sample_tokens
from regard.errors import ConfigError

SOME = ["sinusoidal", "rotary", "lstm-luong", "gru-hybrid"]
some_translators = pytest.mark.parametrize("name", SOME)


# ---- worked numbers


def shares_of(how: Sampling) -> dict[int, float]:
    """What is kept of 0.1, 0.4, 0.2, 0.3, by token."""
    shares, tokens = sampling_distribution(torch.tensor([0.1, 0.4, 0.2, 0.3]).double().log(), how)
    return {t: round(s, 4) for t, s in zip(tokens.tolist(), shares.tolist(), strict=True) if s}


def test_truncated_distributions_by_hand():
    assert shares_of(Sampling()) == {1: 0.4, 3: 0.3, 2: 0.2, 0: 0.1}
    assert shares_of(Sampling(top_k=2)) == {1: 0.5714, 3: 0.4286}  # 4/7, 3/7
    assert shares_of(Sampling(top_p=0.39)) == {1: 1.0}  # 0.4 is enough
    assert shares_of(Sampling(top_p=0.41)) == {1: 0.5714, 3: 0.4286}
    assert shares_of(Sampling(top_p=1.0)) == {1: 0.4, 3: 0.3, 2: 0.2, 0: 0.1}
    assert shares_of(Sampling(min_p=0.49)) == {1: 0.4444, 3: 0.3333, 2: 0.2222}  # 0.196 …
    assert shares_of(Sampling(temperature=0.5)) == {1: 0.5333, 3: 0.3, 2: 0.1333, 0: 0.0333}
    # first the two likeliest, 4/7 and 3/7; of these 0.5 needs one
    assert shares_of(Sampling(top_k=2, top_p=0.5)) == {1: 1.0}
    assert shares_of(Sampling(temperature=0)) == {1: 1.0}


def test_ties_keep_the_first_tokens():
    shares, tokens = sampling_distribution(torch.zeros(4), Sampling(top_p=0.5))
    assert tokens[shares > 0].tolist() == [0, 1]


def test_tokens_are_sampled_by_their_probability():
    uniforms = torch.arange(0.0005, 1, 0.001).double()
    logits = torch.tensor([0.1, 0.4, 0.2, 0.3]).double().log()
    found = sample_tokens(logits.expand(len(uniforms), -1), Sampling(), uniforms)
    assert found.bincount().tolist() == [100, 400, 200, 300]
    some = sample_tokens(logits.expand(len(uniforms), -1), Sampling(top_p=0.5), uniforms)
    assert some.unique().tolist() == [1, 3]


# ---- properties


@given(st.integers(2, 12), st.floats(0.01, 1.0), st.integers(0, 99))
def test_top_p_keeps_the_smallest_set_with_that_much(vocab, share, seed):
    p = torch.randn(vocab, generator=torch.Generator().manual_seed(seed)).double().softmax(0)
    shares, tokens = sampling_distribution(p.log(), Sampling(top_p=share))
    kept = tokens[shares > 0]
    assert p[kept].sum() >= share - 1e-12
    assert p[kept[:-1]].sum() < share  # one less is too little
    assert_close(shares[shares > 0], p[kept] / p[kept].sum())


@given(st.integers(1, 9), st.floats(0, 1, exclude_max=True), st.sampled_from([None, 3]))
def test_truncated_tokens_are_never_sampled(vocab, luck, top_k):
    logits = torch.randn(1, vocab, generator=torch.Generator().manual_seed(vocab))
    how = Sampling(top_k=top_k, top_p=0.6, min_p=0.2)
    shares, tokens = sampling_distribution(logits, how)
    drawn = sample_tokens(logits, how, torch.tensor([luck]).double())
    assert int(drawn) in tokens[shares > 0].tolist()


@some_translators
@pytest.mark.parametrize(
    "how", [Sampling(temperature=0), Sampling(temperature=1e-7), Sampling(top_k=1, temperature=3)]
)
def test_without_a_choice_sampling_is_greedy(name, how):
    model, (source, lengths) = translator(name), sources()
    stepper = make_stepper(model)
    state = stepper.start(source, lengths)
    drawn = sample(stepper, state, firsts(4), end=END, max_new_tokens=6, sampling=how)
    want = greedy(stepper, state, firsts(4), end=END, max_new_tokens=6)
    assert drawn.to_lists() == want.to_lists()
    assert_close(drawn.log_prob, want.log_prob)


@some_translators
def test_samples_do_not_depend_on_batch_and_padding(name):
    model, (source, lengths) = translator(name), sources()
    stepper, limit = make_stepper(model), 6
    state, how = stepper.start(source, lengths), Sampling(top_p=0.9, seed=7)
    together = sample(stepper, state, firsts(4), end=END, max_new_tokens=limit, sampling=how)
    for n, length in enumerate(lengths):
        state, how = stepper.start(source[n : n + 1, :length]), Sampling(top_p=0.9, seed=7 + n)
        alone = sample(stepper, state, firsts(1), end=END, max_new_tokens=limit, sampling=how)
        assert alone.to_lists()[0] == together.to_lists()[n]
        assert_close(alone.log_prob[0], together.log_prob[n])


@pytest.mark.parametrize("name", ["sinusoidal", "learned", "rotary", "window"])
def test_sampling_with_a_cache_matches_without(name):
    model, (prompt, lengths), limit = language(name), sources(), 6
    stepper, how = make_stepper(model), Sampling(top_k=5, seed=3)
    state, first = stepper.start(prompt, lengths), last_tokens(prompt, lengths)
    found = sample(stepper, state, first, end=END, max_new_tokens=limit, sampling=how).to_lists()
    uniforms = row_uniforms(3, 4, limit)
    for n, length in enumerate(lengths):
        row = prompt[n, :length].tolist()
        for at in range(limit):
            token = int(
                sample_tokens(model(torch.tensor([row]))[:, -1], how, uniforms[n : n + 1, at])
            )
            row.append(token)
            if token == END:
                break
        assert [t for t in row[length:] if t != END] == found[n]


def test_the_log_probability_of_samples_is_that_of_the_model():
    model, (source, lengths) = translator("sinusoidal"), sources()
    stepper = make_stepper(model)
    how = Sampling(temperature=2.0, top_k=3, seed=1)
    found = sample(
        stepper, stepper.start(source, lengths), firsts(4), end=END, max_new_tokens=5, sampling=how
    )
    target = torch.cat([firsts(4)[:, None], found.tokens[:, :-1]], 1)
    rows = model(source, target, lengths).log_softmax(-1)
    each = rows.gather(2, found.tokens[..., None])[..., 0]
    real = torch.arange(each.shape[1]) < (found.lengths + found.ended)[:, None]
    assert_close(found.log_prob, (each * real).sum(1))


def test_a_stream_yields_each_token_before_computing_the_next():
    table, asked = Table([0, 1, 0, 0], [0, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 0]), []
    step = table.step
    table.step = lambda tokens, state: (asked.append(tokens.tolist()), step(tokens, state))[1]
    steps = stream(table, table.start([0]), torch.tensor([0]), end=2, max_new_tokens=9)
    assert (next(steps).tokens.tolist(), asked) == ([1], [[0]])
    assert (next(steps).tokens.tolist(), asked) == ([3], [[0], [1]])
    assert [step.ended.tolist() for step in steps] == [[True]]


def test_a_stream_leaves_gradients_as_they_were_between_its_tokens():
    model, (source, _) = translator("sinusoidal"), sources()
    stepper = make_stepper(model)
    for step in stream(stepper, stepper.start(source), firsts(4), end=END, max_new_tokens=3):
        assert torch.is_grad_enabled()
        assert not step.log_prob.requires_grad


def test_the_best_of_a_beam_come_with_their_scores_in_order():
    model, (source, lengths) = translator("sinusoidal"), sources()
    stepper = make_stepper(model)
    given = {"end": END, "max_new_tokens": 6, "width": 4, "n_best": 4, "length_penalty": 0.8}
    found = beam(stepper, stepper.start(source, lengths), firsts(4), **given)
    scores = found.scores(0.8)
    assert torch.equal(scores, scores.sort(-1, True).values)
    counted = found.lengths + found.ended
    assert_close(scores, found.log_prob / ((5 + counted) / 6) ** 0.8)
    assert all(len(set(map(tuple, found.to_lists()[n : n + 4]))) == 4 for n in range(0, 16, 4))


# ---- errors


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"temperature": -1.0}, "temperature: needs 0 or more, got -1.0"),
        ({"temperature": float("nan")}, "temperature: needs 0 or more, got nan"),
        ({"top_k": 0}, "top_k: needs 1 or more, got 0; try None for all"),
        ({"top_p": 0.0}, "top_p: needs 0 < top_p ≤ 1, got 0.0; try None"),
        ({"min_p": 1.5}, "min_p: needs 0 < min_p ≤ 1, got 1.5; try None"),
    ],
)
def test_invalid_sampling_settings_raise(given, message):
    with pytest.raises(ConfigError, match=message):
        Sampling(**given)
