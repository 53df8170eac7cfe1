"""Batches have one global order for every world size, and resume where they stopped."""

from itertools import islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data import (
    Batches,
    ByteTokenizer,
    InMemorySource,
    Phrases,
    WordTokenizer,
    collate,
    iter_texts,
    pair_preprocessor,
)
from regard.data.batches import bucket_by_length
from regard.errors import ConfigError, FileError, ShapeError

LINES = ["x" * (1 + 7 * i % 11) + f"{i}" for i in range(83)]
BYTES = ByteTokenizer()


def made(split="train", **changes):
    source = InMemorySource(train=LINES, test=LINES)
    given = {"batch_tokens": 60, "seed": 3, "sort_window": 20, **changes}
    return Batches(source, lambda t: {"x": BYTES.encode(t)}, split=split, **given)


def texts(batch):
    rows = zip(batch["x"], batch["x_lengths"], strict=True)
    return [BYTES.decode(row[:size].tolist()) for row, size in rows]


def run(batches, steps):
    return [texts(batch) for batch in islice(batches, steps)]


def test_a_batch_is_padded_and_has_lengths():
    batch = collate([{"x": [5], "y": 1}, {"x": [6, 7], "y": 2}], pad_id=9)
    assert batch["x"].tolist() == [[5, 9], [6, 7]]
    assert batch["x_lengths"].tolist() == [1, 2]
    assert batch["y"].tolist() == [1, 2]


def test_frames_are_padded_and_images_are_stacked():
    frames = [{"mel": torch.ones(n, 2), "image": torch.ones(1, 4, 4)} for n in (1, 3)]
    batch = collate(frames, pad_id=7)
    assert batch["mel"].shape == (2, 3, 2)
    assert batch["mel"][0, 1:].eq(0).all()
    assert batch["image"].shape == (2, 1, 4, 4)


@given(st.lists(st.integers(1, 20), max_size=40), st.integers(20, 60))
def test_every_example_is_in_one_batch_and_no_batch_is_too_large(lengths, tokens):
    batches = bucket_by_length(lengths, tokens)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    assert all(len(b) * max(lengths[i] for i in b) <= tokens for b in batches)


def test_a_finite_split_gives_every_example_once_each_time():
    batches = made("test")
    for _ in range(2):
        assert sorted(t for texts in run(batches, None) for t in texts) == sorted(LINES)


def test_batches_hold_like_lengths():
    padded = sum(batch["x"].numel() for batch in made("test", sort_window=83))
    assert sum(map(len, LINES)) / padded > 0.9


@pytest.mark.parametrize("stop", range(0, 30, 3))
def test_resuming_from_a_state_gives_the_same_batches(stop):
    whole = run(made(), 40)
    first = made()
    before = run(first, stop)
    after = made(seed=99)
    after.restore(first.state())
    assert before + run(after, 40 - stop) == whole


def test_an_iterator_dropped_midway_goes_on_in_the_next():
    whole, batches = run(made(), 20), made()
    assert run(batches, 7) + run(batches, 13) == whole


@pytest.mark.parametrize("world", [2, 3, 5])
def test_ranks_take_turns_in_the_order_of_one(world):
    alone = run(made(), 6 * world)
    ranks = [run(made(rank=rank, world_size=world), 6) for rank in range(world)]
    assert [texts for step in zip(*ranks, strict=True) for texts in step] == alone


@pytest.mark.parametrize("world", [1, 2, 3])
def test_no_example_of_a_finite_split_is_lost_at_any_world(world):
    ranks = [run(made("test", rank=rank, world_size=world), None) for rank in range(world)]
    assert sorted(t for rank in ranks for texts in rank for t in texts) == sorted(LINES)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_state_of_two_ranks_serves_three(rank):
    two = made(rank=rank, world_size=2)
    run(two, 6)
    three = [made(rank=rank, world_size=3) for rank in range(3)]
    for rank in three:
        rank.restore(two.state())
    after = [texts for step in zip(*(run(r, 4) for r in three), strict=True) for texts in step]
    assert after == run(made(), 24)[12:]


def test_seeds_differ():
    assert run(made(), 5) != run(made(seed=4), 5)


def test_the_language_is_the_first_token_of_the_decoder():
    phrases = Phrases(("en", "de", "fr"), source_languages=("en",))
    words = WordTokenizer.train(
        iter_texts(islice(phrases.examples("train", 0), 300)), languages=phrases.languages
    )
    batches = Batches(phrases, pair_preprocessor(words), split="test", batch_tokens=500)
    for batch in batches:
        assert set(batch) == {"source", "source_lengths", "target", "target_lengths"}
        assert {words.id_to_token(int(i)) for i in batch["target"][:, 0]} <= {"<de>", "<fr>"}
        ends = batch["target_lengths"] - 1
        assert batch["target"].gather(1, ends[:, None]).eq(words.eos_id).all()


@pytest.mark.usefixtures("users_view")
def test_mistakes_in_batches_are_reported_in_one_line():
    with pytest.raises(ConfigError, match="rank: needs to be from 0 to 1, got 2"):
        made(rank=2, world_size=2)
    with pytest.raises(ConfigError, match="batch_tokens: needs 1 or more, got 0"):
        made(batch_tokens=0)
    with pytest.raises(ShapeError, match="batch_tokens: needs 13 for example .*, got 5"):
        next(iter(made("test", batch_tokens=5, sort_window=83)))
    with pytest.raises(FileError, match="needs batch_tokens, position, seed"):
        made().restore({"seed": 1})
    with pytest.raises(ConfigError, match="sort_window: needs to be 20 as in the state, got 30"):
        made(sort_window=30).restore(made().state())
    with pytest.raises(ConfigError, match="split: needs one that has examples, got valid"):
        next(iter(made("valid")))
