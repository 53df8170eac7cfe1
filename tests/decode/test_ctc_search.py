"""CTC prefix beam search: it matches brute force, and can use a language model."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard import decode, models
from regard.decode import BestPath, PrefixBeam, StepperLanguageModel, prefix_beam
from regard.errors import ConfigError, ShapeError


def chances(time: int, vocab: int, sharp: float = 1.0) -> torch.Tensor:
    return (torch.randn(time, vocab, dtype=torch.float64) * sharp).log_softmax(-1)


def every_answer(log_probs: torch.Tensor) -> dict[tuple[int, ...], float]:
    """The probability of every label sequence, by going through all paths."""
    time, vocab = log_probs.shape
    found: dict[tuple[int, ...], float] = {}
    for path in itertools.product(range(vocab), repeat=time):
        labels = tuple(label for label, _ in itertools.groupby(path) if label)
        chance = math.exp(sum(float(log_probs[t, c]) for t, c in enumerate(path)))
        found[labels] = found.get(labels, 0.0) + chance
    return found


def bigram(prefix: tuple[int, ...]) -> list[float]:
    """A language that likes a label to differ from the one before."""
    last = prefix[-1] if prefix else 0
    return [math.log(0.1 if label == last else 0.45) for label in range(3)]


@settings(max_examples=15)
@given(time=st.integers(1, 5), seed=st.integers(0, 99))
def test_with_room_for_all_it_is_brute_force_over_all_paths(time, seed):
    torch.manual_seed(seed)
    log_probs = chances(time, 3)
    want = every_answer(log_probs)
    found = prefix_beam(log_probs, width=999, n_best=len(want), min_log_prob=-math.inf)
    assert {prefix.labels for prefix in found} == set(want)
    for prefix in found:
        assert math.isclose(math.exp(prefix.log_prob), want[prefix.labels], abs_tol=1e-12)
    assert [p.log_prob for p in found] == sorted((p.log_prob for p in found), reverse=True)


@settings(max_examples=15)
@given(time=st.integers(1, 5), seed=st.integers(0, 99), bonus=st.sampled_from([0.0, 0.7]))
def test_with_a_language_it_is_brute_force_too(time, seed, bonus):
    torch.manual_seed(seed)
    log_probs = chances(time, 3)

    def score(labels: tuple[int, ...], chance: float) -> float:
        said = sum(bigram(labels[:n])[label] for n, label in enumerate(labels))
        return math.log(chance) + 0.8 * said + bonus * len(labels)

    want = max((score(*item), item[0]) for item in every_answer(log_probs).items())
    options = {
        "language_model": bigram,
        "lm_weight": 0.8,
        "length_bonus": bonus,
        "min_log_prob": -math.inf,
    }
    (found,) = prefix_beam(log_probs, width=999, **options)
    assert math.isclose(found.score, want[0], abs_tol=1e-9)
    assert found.labels == want[1]


@settings(max_examples=10)
@given(seed=st.integers(0, 99))
def test_a_beam_of_one_is_greedy_where_the_model_is_sure(seed):
    torch.manual_seed(seed)
    log_probs = chances(30, 5, sharp=40.0)
    (found,) = prefix_beam(log_probs, width=1, min_log_prob=-math.inf)
    assert list(found.labels) == BestPath()(log_probs)


@settings(max_examples=8)
@given(seed=st.integers(0, 50), size=st.integers(1, 7))
def test_streaming_matches_offline_and_stable_labels_never_change(seed, size):
    torch.manual_seed(seed)
    log_probs = chances(40, 4, sharp=2.5)
    (want,) = prefix_beam(log_probs, width=5)
    search, told = PrefixBeam(width=5), []
    for piece in log_probs.split(size):
        search(piece)
        told += search.pop_stable_labels()
        assert told == list(want.labels)[: len(told)]
    assert told + search.unstable_labels() == list(want.labels)


def test_a_long_stream_keeps_short_prefixes():
    search = PrefixBeam(width=4)
    emitted = 0
    for piece in chances(400, 4, sharp=6.0).split(10):
        search(piece)
        emitted += len(search.pop_stable_labels())
        assert max(map(len, search.beam)) <= 50 + 2 + 10
    assert emitted > 100


def test_a_language_model_changes_the_best_labels():
    even = torch.tensor([[0.02, 0.55, 0.43], [0.96, 0.02, 0.02], [0.02, 0.55, 0.43]]).log()
    assert prefix_beam(even)[0].labels == (1, 1)
    assert prefix_beam(even, language_model=bigram)[0].labels in {(1, 2), (2, 1)}


def test_a_stepper_is_a_language_model_for_prefixes_in_any_order():
    model = models.LanguageModel(models.language_tiny(vocab=6, dropout=0.0)).double().eval()
    language = StepperLanguageModel(decode.make_stepper(model))
    prefixes = [(4, 5, 4), (), (5,), (4,), (4, 5, 4), (5, 5, 5, 4)]
    for prefix in prefixes:
        logits = model(torch.tensor([[1, *prefix]]))[0, -1].log_softmax(-1)
        assert torch.allclose(torch.tensor(language(prefix), dtype=torch.float64), logits)


def test_a_stepper_guides_the_beam():
    model = models.LanguageModel(models.language_tiny(vocab=3, dropout=0.0)).eval()
    language = StepperLanguageModel(decode.make_stepper(model))
    log_probs = chances(4, 3)
    options = {"width": 999, "lm_weight": 3.0, "min_log_prob": -math.inf}
    (found,) = prefix_beam(log_probs, language_model=language, **options)
    scores = {
        labels: math.log(chance)
        + 3.0 * sum(language(labels[:n])[label] for n, label in enumerate(labels))
        for labels, chance in every_answer(log_probs).items()
    }
    assert found.labels == max(scores, key=lambda labels: scores[labels])


def test_invalid_arguments_of_the_search_raise(users_view):
    with pytest.raises(ConfigError, match="width: needs 1 or more, got 0"):
        PrefixBeam(width=0)
    with pytest.raises(ConfigError, match="n_best: needs 1 to width=2, got 3; try a wider beam"):
        prefix_beam(chances(2, 3), width=2, n_best=3)
    with pytest.raises(ShapeError, match=r"log_probs: needs time and vocab, got .*; try log_probs"):
        PrefixBeam()(torch.zeros(1, 2, 3))
