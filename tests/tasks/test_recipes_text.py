"""Recipes over text files: splits, windows, scores, runs and errors."""

import gzip
import math
import signal
from dataclasses import replace
from random import Random

import pytest
import torch

from regard import models
from regard.data import ByteTokenizer, InMemorySource, Pair, token_cache
from regard.errors import ConfigError, FileError
from regard.runs import fit, load_run, override_settings
from regard.tasks import recipe
from regard.tasks.language.baseline import text_baseline, xz_bits
from regard.tasks.language.text import TextTask
from regard.tasks.language.windows import ByteLosses, LanguageEvaluator, WindowBatches
from regard.tasks.translation.parallel_text import PairsTask, ParallelTextEvaluator
from regard.train import copy_weights, mean_loss, objective
from regard.train.updates import Updater

NUMBERS = ["ein", "zwei", "drei", "vier", "fünf"], ["one", "two", "three", "four", "five"]
LADDER = ("lstm", "gru", "gru-attention", "transformer")
TINY = ["device=cpu", "steps=4", "batch_tokens=64", "evaluate_every=2", "save_every=2", "warmup=1"]


@pytest.fixture
def pairs(tmp_path):
    """Every two numbers in German and English, one pair per line."""
    folder = tmp_path / "pairs"
    folder.mkdir()
    for stem in ("train", "val", "test_2016_flickr"):
        for words, name in zip(NUMBERS, ("de", "en"), strict=True):
            lines = [f"{a.capitalize()} {b}\n" for a in words for b in words]
            (folder / f"{stem}.{name}").write_text("".join(lines), encoding="utf-8")
    return folder


@pytest.fixture
def files(tmp_path):
    """Files enough for every part to get some."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for n in range(60):
        (folder / f"{n:02}.txt").write_text(f"file {n} says {n} times: " + "again " * n)
    return folder


def tiny_pairs(folder, kind="en-de", *more: str):
    small = [f"folder={folder}", "vocab_size=320", "dim=16", "max_new_tokens=4"]
    return override_settings(recipe(f"multi30k-{kind}"), [*TINY, *small, *more])


def own_pairs(folder, **settings) -> PairsTask:
    data = recipe("multi30k-de-en-gru").data
    return replace(data, folder=str(folder), **{"lowercase": False, **settings})


def tiny_text(folder, *more: str):
    small = [f"folder={folder}", "vocab_size=270", "overlap=4", "length=16", "valid_windows=3"]
    model = ["kv_heads=none", "layers=1", "heads=2", "dim=16"]
    return override_settings(recipe("stdlib"), [*TINY, *small, *model, *more])


# what is read


def test_splits_are_the_files_of_the_settings(pairs):
    data = own_pairs(pairs, valid=("train.de", "train.en"), lowercase=True)
    assert data.pairs("valid")[1] == ("ein zwei", "one two", "en")
    assert len(data.pairs("train")) == 25


def test_the_reverse_direction_is_for_training_only(pairs):
    data = own_pairs(pairs, bidirectional=True)
    there, back = data.pairs("train")[:25], data.pairs("train")[25:]
    assert [(p.target, p.source) for p in there] == [(p.source, p.target) for p in back]
    assert {p.language for p in back} == {"de"}
    assert len(data.pairs("test")) == 25


def test_tail_holds_out_the_last_tenth(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("0123456789" * 10)
    data = TextTask(folder=str(file), split_by="tail", tokenizer_type="characters")
    assert data.texts("train") == ["0123456789" * 9]
    assert data.texts("valid") == data.texts("test") == ["0123456789"]


def test_every_file_is_in_one_split(files):
    data = TextTask(folder=str(files))
    parts = [set(data.texts(part)) for part in ("train", "valid", "test")]
    assert sum(map(len, parts)) == 60 == len(set.union(*parts))


# windows


def test_an_epoch_has_every_window_once():
    batches = WindowBatches(torch.arange(1000), length=8, rows=4)
    stream = iter(batches)
    starts = [
        row[0].item()
        for _ in range(batches.windows_per_epoch // 4)
        for row in next(stream)["tokens"]
    ]
    assert len(set(starts)) == len(starts)
    assert len({start % 8 for start in starts}) == 1  # cut at one place
    assert starts != sorted(starts)


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_share_the_batches_of_one(world):
    alone = iter(WindowBatches(torch.arange(500), length=8, rows=2, seed=3))
    ranks = [
        iter(
            WindowBatches(torch.arange(500), length=8, rows=2, seed=3, rank=rank, world_size=world)
        )
        for rank in range(world)
    ]
    for _ in range(5):
        for rank in ranks:
            assert torch.equal(next(rank)["tokens"], next(alone)["tokens"])


def test_windows_continue_from_a_state():
    first = WindowBatches(torch.arange(500), length=8, rows=2)
    stream = iter(first)
    next(stream)
    state, want = first.state(), next(stream)["tokens"]
    second = WindowBatches(torch.arange(500), length=8, rows=2, seed=9)
    second.restore(state)
    assert torch.equal(next(iter(second))["tokens"], want)


# scores


class Count(torch.nn.Module):
    """Sure that each token is the one before plus one; keeps what it was asked."""

    def __init__(self, vocab: int):
        super().__init__()
        self.weight, self.vocab, self.inputs = torch.nn.Parameter(torch.ones(1)), vocab, []

    def forward(self, tokens):
        self.inputs.append(tokens)
        right = torch.nn.functional.one_hot((tokens + 1) % self.vocab, self.vocab)
        return 50.0 * right * self.weight


@pytest.mark.parametrize(("length", "overlap"), [(8, 0), (8, 3), (64, 63), (5, 4)])
def test_every_token_is_predicted_once_within_its_row(length, overlap):
    rows = [torch.arange(7), torch.arange(40), torch.tensor([5]), torch.arange(3)]
    scores = LanguageEvaluator(rows, 10, length=length, overlap=overlap)
    predicted = [
        place
        for first, known, end in scores.windows
        for place in range(known, min(end, first + length + 1))
    ]
    starts = {0, 7, 47, 48}
    assert sorted(predicted) == [place for place in range(51) if place not in starts]
    for first, known, end in scores.windows:
        row = max(start for start in starts if start <= first)
        assert end == min([*(s for s in starts if s > first), 51])
        assert known - first > overlap or first == row
    assert scores(Count(64))["loss"] == pytest.approx(0, abs=1e-6)


def test_a_uniform_model_has_the_bits_of_its_vocabulary():
    class Even(Count):
        def forward(self, tokens):
            return torch.zeros(*tokens.shape, 16) * self.weight

    scores = LanguageEvaluator([torch.arange(11)], 5, length=4)(Even(16))
    assert scores["loss"] == pytest.approx(math.log(16))
    assert scores["bits_per_byte"] == pytest.approx(4 * 10 / 5)


def test_max_windows_are_evenly_spaced():
    scores = LanguageEvaluator([torch.arange(1000) % 64], 10, length=10, max_windows=4)
    assert [first for first, _, _ in scores.windows] == [0, 250, 500, 750]


def test_the_loss_is_that_of_training_where_windows_do_not_overlap():
    model = models.LanguageModel(models.language_tiny(vocab=32)).eval()
    row = torch.randint(0, 32, (33,))
    batch = {"tokens": torch.stack([row[:17], row[16:]])}
    want = mean_loss(model, objective("next_token"), [batch])
    assert LanguageEvaluator([row], 1, length=16)(model)["loss"] == pytest.approx(want, rel=1e-5)


def test_losses_of_bytes_are_shared_out_to_the_windows_that_cover_them():
    rows, sizes = [torch.arange(6)], torch.tensor([9, 1, 1, 2, 2, 4])
    evaluator = LanguageEvaluator(rows, 20, length=2, token_bytes=sizes)
    assert evaluator.sizes.tolist() == [[2.0, 4.0], [2.0, 8.0], [1.0, 8.0]]
    tally = evaluator.tally(ByteLosses(torch.tensor([1.0] * 4 + [2.0] * 8 + [3.0] * 8)))
    assert tally.rows[:, 0].tolist() == [4.0, 16.0, 24.0]
    assert tally.scores()["bits_per_byte"] == pytest.approx(44 / 20 / math.log(2))


def test_the_baseline_of_a_text_is_the_better_of_ngrams_and_xz(tmp_path):
    rng = Random(0)
    text = "".join(rng.choices("ab", k=4000))  # predictable by a long copy alone
    name, losses = text_baseline([text], [text[:500]], [text])
    assert name == "xz after the train text"
    assert float(losses.nats.sum()) / math.log(2) == pytest.approx(xz_bits([text], [text]), 1e-4)
    noise = ["".join(rng.choices("abcd", [9, 3, 1, 1], k=3000)) for _ in range(2)]
    name, losses = text_baseline(noise[:1], noise[1:], noise[1:])
    assert name.startswith("Kneser-Ney n-grams of")
    assert losses.nats.mean() == pytest.approx(0.99, abs=0.05)  # the entropy


def test_bleu_lower_ignores_case():
    texts = InMemorySource(test=[Pair("drei Hunde im Park", "THREE DOGS IN THE PARK", "en")])
    scores = ParallelTextEvaluator(texts, ByteTokenizer(("de", "en")), split="test")
    scores.predict = lambda model: [p.target.capitalize() for p in scores.pairs]
    scores.loss = lambda model: 0.0
    got = scores(torch.nn.Identity())
    assert (got["bleu"], got["exact"]) == (0, 0)
    assert got["bleu_lower"] == pytest.approx(100)


# runs


@pytest.mark.parametrize("kind", [*(f"de-en-{kind}" for kind in LADDER), "en-de"])
def test_every_multi30k_recipe_trains_and_loads(pairs, tmp_path, kind):
    outcome = fit(tiny_pairs(pairs, kind), tmp_path / "run")
    assert outcome.reason == "finished"
    run = load_run(tmp_path / "run")
    assert run.recipe == tiny_pairs(pairs, kind)
    assert {"bleu", "bleu_lower", "signature"} <= set(run.result["test"])


@pytest.mark.parametrize("units", ["bytes", "bpe", "characters"])
def test_a_language_model_trains_with_any_tokenizer(files, tmp_path, units):
    fit(tiny_text(files, f"tokenizer_type={units}"), tmp_path / "run")
    test = load_run(tmp_path / "run").result["test"]
    assert set(test) == {"loss", "bits_per_byte"}


def test_the_presets_fit_together(files, tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("to be or not to be, that is the question. " * 40)
    small = [f"folder={file}", "dim=12", "layers=1", "length=16"]
    fit(override_settings(recipe("shakespeare"), [*TINY, *small]), tmp_path / "run")
    assert load_run(tmp_path / "run").model.config.rope_theta
    assert recipe("stdlib-long").model.dim > recipe("stdlib").model.dim


@pytest.mark.parametrize("make", [tiny_pairs, tiny_text])
def test_an_interrupted_and_resumed_run_is_bit_identical(pairs, files, tmp_path, monkeypatch, make):
    small = make(pairs if make is tiny_pairs else files)
    fit(small, tmp_path / "whole")
    real = Updater.step

    def stop(updater, objective, step, lr):
        if step == 3:
            signal.raise_signal(signal.SIGTERM)
        return real(updater, objective, step, lr)

    with monkeypatch.context() as patched:
        patched.setattr(Updater, "step", stop)
        assert fit(small, tmp_path / "half").reason == "interrupted"
    cache = tmp_path / "half" / "cache"
    assert (cache / "cache.json").exists()
    monkeypatch.setattr(token_cache, "write_token_cache", None)  # it is there: not written again
    fit(tmp_path / "half")
    assert not cache.exists()
    whole, half = (copy_weights(load_run(tmp_path / name).model) for name in ("whole", "half"))
    assert all(torch.equal(whole[name], half[name]) for name in whole)


# errors


def test_missing_files_are_named(pairs, users_view):
    message = r"train: needs files in folder='\.', got no train\.en; try --set folder=…"
    with pytest.raises(FileError, match=message):
        fit(recipe("multi30k-en-de"), "never-made")
    (pairs / "val.de").unlink()
    with pytest.raises(FileError, match=r"valid: needs files in .*, got no val\.de"):
        own_pairs(pairs).tokenizer(0)


def test_a_gzipped_file_is_read_where_the_plain_one_is_missing(pairs):
    before = own_pairs(pairs).pairs("valid")
    file = pairs / "val.de"
    (pairs / "val.de.gz").write_bytes(gzip.compress(file.read_bytes()))
    file.unlink()
    assert own_pairs(pairs).pairs("valid") == before


def test_a_missing_or_short_text_raises(tmp_path, users_view):
    with pytest.raises(FileError, match="folder: needs a text file .*, got none at 'nowhere'"):
        TextTask(folder="nowhere").texts("train")
    (tmp_path / "a.txt").write_text("one file")
    with pytest.raises(
        FileError, match="needs text for the valid split, got none; try split_by=tail"
    ):
        TextTask(folder=str(tmp_path)).texts("valid")
    with pytest.raises(ConfigError, match="length: needs two windows and a token, 17, got 16"):
        WindowBatches(torch.arange(16), length=8, rows=1)


def test_a_state_of_other_windows_raises():
    windows = WindowBatches(torch.arange(50), length=8, rows=2)
    with pytest.raises(ConfigError, match="rows: needs to be 4 as in the state, got 2"):
        windows.restore(windows.state() | {"rows": 4})
    with pytest.raises(FileError, match=r"needs length, position, rows, seed"):
        windows.restore({"position": 3})
