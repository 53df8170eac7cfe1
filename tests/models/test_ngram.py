"""N-gram models against the definition of modified Kneser-Ney smoothing, with dictionaries."""

from collections import Counter, defaultdict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from regard.errors import ConfigError
from regard.models import NgramConfig, fit_ngrams
from regard.models.ngram import NgramMixture, max_order

VOCAB = 6


def kneser_ney(text, order, context, token):
    """p(token | context) by recursion over the order, as in Chen and Goodman (1998), section 3."""
    ngrams = [tuple(text[n : n + order]) for n in range(len(text) - order + 1)]
    return _interpolated(text, order, tuple(context), token, Counter(ngrams))


def _interpolated(text, order, context, token, counts):
    if order == 0:
        return 1 / VOCAB
    lower = defaultdict(set)
    for n in range(len(text) - order + 1):  # the tokens before each shorter n-gram
        gram = tuple(text[n : n + order])
        lower[gram[1:]].add(gram[0])
    shorter = {gram: len(before) for gram, before in lower.items()}
    start = tuple(text[: order - 1])
    shorter.setdefault(start, 1)
    context = context[len(context) - order + 1 :] if order > 1 else ()
    sizes = Counter(min(x, 5) for x in counts.values())
    y = sizes[1] / max(1, sizes[1] + 2 * sizes[2])
    discounts = [k - (k + 1) * y * sizes[k + 1] / max(1, sizes[k]) for k in (1, 2, 3)]
    discounts = [0, *(x if 0 < x < k else 0.5 for k, x in enumerate(discounts, 1))]
    below = _interpolated(text, order - 1, context[1:], token, shorter)
    total = sum(x for gram, x in counts.items() if gram[:-1] == context)
    if total == 0:
        return below
    rest = sum(discounts[min(x, 3)] for gram, x in counts.items() if gram[:-1] == context)
    own = counts.get((*context, token), 0)
    return (max(0, own - discounts[min(own, 3)]) + rest * below) / total


@given(st.lists(st.integers(1, 4), min_size=8, max_size=40), st.integers(1, 4), st.data())
def test_probabilities_are_those_of_the_definition(text, order, data):
    model = fit_ngrams([torch.tensor(text)], vocab=VOCAB, order=order)
    context = data.draw(st.lists(st.integers(0, 5), min_size=order - 1, max_size=order + 1))
    got = model(torch.tensor([[0, *context]]))[0, -1].exp()
    want = [kneser_ney(text, order, context, token) for token in range(VOCAB)]
    assert_close(got, torch.tensor(want), rtol=1e-4, atol=1e-6)


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=30), min_size=1, max_size=3))
def test_probabilities_add_up_to_one_and_scores_are_those_of_the_distribution(texts):
    model = fit_ngrams([torch.tensor(text) for text in texts], vocab=VOCAB, order=3)
    tokens = torch.randint(VOCAB, (2, 9))
    log_probs = model(tokens)
    assert_close(log_probs.exp().sum(-1), torch.ones(2, 9))
    scores = model.log_probs(tokens)[:, 1:]
    assert_close(scores, log_probs[:, :-1].gather(-1, tokens[:, 1:, None])[..., 0])


def test_codes_of_the_longest_ngrams_are_64_bit_numbers():
    for symbols in (1, 2, 255, 511):
        assert (symbols + 1) ** max_order(symbols) < 2**63
    with pytest.raises(ConfigError, match="entries: needs 1 to 7 positive numbers"):
        NgramConfig(vocab=300, symbols=255, entries=(1,) * 8)


def test_longer_ngrams_remember_more():
    text = torch.tensor([0, 1, 0, 2, 0, 1, 0, 3] * 20)
    losses = [-fit_ngrams([text], vocab=4, order=n).log_probs(text[None]).mean() for n in (1, 2, 4)]
    assert losses[0] > losses[1] > losses[2] + 0.2


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_known_tokens_are_the_longest_end_of_a_context_that_occurs_in_the_text(context):
    text = [0, 1, 2, 0, 1, 3, 1, 1]
    model = fit_ngrams([torch.tensor(text)], vocab=VOCAB, order=4)
    occurs = {tuple(text[a : a + n]) for n in (1, 2, 3) for a in range(len(text) - n + 1)}
    want = [
        max(
            n
            for n in range(4)
            if n == 0 or tuple(context[: end + 1][-n:]) in occurs and n <= end + 1
        )
        for end in range(len(context))
    ]
    assert model.known(torch.tensor([context]))[0].tolist() == want


def test_a_mixture_weighs_by_how_much_of_the_context_is_known():
    mixture = NgramMixture(fit_ngrams([torch.tensor([0, 1, 0, 1])], vocab=3, order=2).config)
    mixture.tables.load_state_dict(
        fit_ngrams([torch.tensor([0, 1, 0, 1])], vocab=3, order=2).state_dict()
    )
    mixture.mix.copy_(torch.tensor([1.0, 0.25]))
    tokens, logits = torch.tensor([[2, 0]]), torch.tensor([[[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]]])
    network, ngrams = logits.softmax(-1), mixture.tables(tokens).exp()
    got = mixture(logits, tokens).exp()
    assert_close(got[0, 0], network[0, 0])  # the token 2 is not in the text
    assert_close(got[0, 1], 0.25 * network[0, 1] + 0.75 * ngrams[0, 1])
    assert_close(mixture(logits[:, 1:], tokens), mixture(logits, tokens)[:, 1:])
