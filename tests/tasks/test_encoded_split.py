"""Train splits larger than memory: bounded samples, and a token cache that is safe and reused."""

import os
import tracemalloc
from dataclasses import replace
from itertools import islice, pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data import BPETokenizer, ByteTokenizer, InMemorySource, pair_preprocessor
from regard.data.source import Reservoir
from regard.data.token_cache import write_token_cache
from regard.errors import FileError
from regard.runs import fit, override_settings
from regard.tasks import PairsTask, TextTask, recipe
from regard.tasks.base import EncodedCache
from regard.tasks.language import text as text_module
from regard.tasks.translation import parallel_text
from regard.train import TrainConfig

TRAIN = TrainConfig(steps=1, batch_tokens=200)
BPE = BPETokenizer.train(["to be or not to be, that's the question 1234\n\t"] * 9, 300)


@pytest.fixture
def task(tmp_path, monkeypatch):
    monkeypatch.setattr(parallel_text, "SORT_WINDOW", 64)
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(f"word{n} a\tWort{n} b\n" for n in range(300)))
    return PairsTask(folder=str(tmp_path), train=(file.name,), tokenizer_type="words")


def first_batches(task, count=3, languages=("source", "target"), cache=None):
    source = task.cached_batches(ByteTokenizer(languages), TRAIN, EncodedCache(cache))
    return [batch["source"].tolist() for batch in islice(source, count)]


# samples


def test_a_reservoir_keeps_all_that_fits_in_order_and_a_uniform_sample_of_more():
    few = Reservoir[int](9)
    few.extend(range(9))
    assert few.items == list(range(9))
    counts = [0] * 20
    for seed in range(2000):
        sample = Reservoir[int](5, seed)
        sample.extend(range(20))
        for item in sample.items:
            counts[item] += 1
    assert all(400 < count < 600 for count in counts)  # 500 each, standard deviation 19


def test_the_tokenizer_of_pairs_is_trained_on_so_many_evenly_spaced(task, monkeypatch):
    taken = []
    monkeypatch.setattr(parallel_text, "iter_texts", lambda pairs: taken.extend(pairs) or ["a"])
    for size in (7, 1000):
        replace(task, tokenizer_pairs=size).tokenizer(0)
    train = task.pairs("train")
    assert taken[-len(train) :] == train
    places = [train.index(pair) for pair in taken[: -len(train)]]
    assert len(places) == 7
    assert {b - a for a, b in pairwise(places)} == {39}  # of 270 or so


def test_the_tokenizer_of_texts_is_trained_on_evenly_spaced_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(text_module, "PIECE_CHARS", 10)
    file = tmp_path / "a.txt"
    file.write_text("".join(chr(0x4E00 + n) * 10 for n in range(100)))
    task = TextTask(folder=str(file), split_by="tail", tokenizer_type="characters")
    assert len(task.tokenizer(0).tokens) == 90
    assert len(replace(task, tokenizer_chars=300).tokenizer(0).tokens) == 30


def test_a_sample_of_the_held_out_examples_is_evaluated(task, tmp_path):
    assert len(replace(task, eval_pairs=3).pairs("test")) == 3
    assert set(replace(task, eval_pairs=3).pairs("test")) <= set(task.pairs("test"))
    file = tmp_path / "a.txt"
    file.write_text("0123456789" * 10)
    text = TextTask(folder=str(file), split_by="tail", eval_chars=4)
    assert (text.texts("valid"), len(text.texts("train")[0])) == (["0123"], 90)


# encoding


@given(st.text(st.sampled_from("ab'12!é日😀_ \n\t\x1c\x1f\x85\xa0\u2028\u200b\0"), max_size=20))
def test_byte_pairs_of_words_are_those_of_the_text(text):
    assert BPE.encode_batch([text]) == [BPE.encode(text)]


def test_the_order_of_an_epoch_is_that_of_a_shuffled_list():
    order = list(range(50))
    Random("3/1").shuffle(order)
    assert list(islice(InMemorySource(train=range(50)).examples("train", 3, 50), 50)) == order


def test_batches_are_those_of_the_encoded_pairs(task):
    tokenizer = ByteTokenizer(("source", "target"))
    rows = [pair_preprocessor(tokenizer)(pair)["source"] for pair in task.pairs("train")]
    batches = [row for batch in first_batches(task, 30) for row in batch]
    unpadded = [[n for n in row if n != tokenizer.pad_id] for row in batches]
    assert {tuple(row) for row in rows} == {tuple(row) for row in unpadded}


def test_memory_does_not_grow_with_the_train_split(tmp_path):
    examples = ({"x": [n] * 20_000} for n in range(300))  # 12 MB on disk, four times as lists
    tracemalloc.start()
    cache = write_token_cache(tmp_path, examples, vocab=300)
    assert [cache[n]["x"][0] for n in (0, 7, 299)] == [0, 7, 299]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3_000_000


# the cache of a run


def count_encoded(monkeypatch):
    """A list that grows by one with every pair that is encoded."""
    encoded = []

    def preprocessor(tokenizer):
        encode = pair_preprocessor(tokenizer)
        return lambda pair: encoded.append(pair) or encode(pair)

    monkeypatch.setattr(parallel_text, "pair_preprocessor", preprocessor)
    return encoded


def test_a_cache_is_reused_until_data_settings_or_tokenizer_change(task, tmp_path, monkeypatch):
    encoded, cache, file = count_encoded(monkeypatch), tmp_path / "cache", tmp_path / "pairs.tsv"
    whole = first_batches(task, cache=cache)
    size = len(encoded)
    assert first_batches(task, cache=cache) == whole == first_batches(task)
    assert len(encoded) == 2 * size  # the last one has no cache
    first_batches(replace(task, lowercase=True), cache=cache)
    assert len(encoded) == 3 * size
    first_batches(task, cache=cache)
    os.utime(file, ns=(1, 1))
    first_batches(task, cache=cache)
    assert len(encoded) == 5 * size
    (cache / "source.tokens").write_bytes(b"damaged")
    assert first_batches(task, cache=cache) == whole
    assert len(encoded) == 6 * size
    assert first_batches(task, languages=("target", "source", "third"), cache=cache) != whole


def small(task):
    given = ["device=cpu", "steps=2", "batch_tokens=200", "dim=16"]
    made = override_settings(recipe("multi30k-de-en-gru"), given)
    return replace(made, data=replace(task, vocab_size=300))


@pytest.mark.usefixtures("users_view")
def test_a_full_disk_leaves_no_run_behind(task, tmp_path):
    run = tmp_path / "run"
    (run / "cache").mkdir(parents=True)
    (run / "cache" / "target.tokens").symlink_to("/dev/full")
    with pytest.raises(FileError, match=r"target\.tokens: cannot be written, No space left"):
        fit(small(task), run)
    assert not list(run.glob("*"))


def test_ctrl_c_while_encoding_leaves_no_run_behind(task, tmp_path, monkeypatch):
    def interrupted(tokenizer):
        raise KeyboardInterrupt

    monkeypatch.setattr(parallel_text, "pair_preprocessor", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fit(small(task), tmp_path / "run")
    assert not (tmp_path / "run").exists()
