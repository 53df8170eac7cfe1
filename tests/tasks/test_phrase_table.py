"""The phrase table of a translator: similar texts, words, limits, and a run that falls back."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from regard.data import ByteTokenizer, Pair
from regard.errors import ConfigError
from regard.models import translator_tiny
from regard.models.phrase_table import NEVER, PhraseTable
from regard.runs import fit, load_run, override_settings
from regard.tasks import recipe
from regard.tasks.translation.parallel_text import PairsTask
from regard.tasks.translation.phrase_table import Phrases, fit_limits, list_phrases
from regard.tasks.translation.search import Translation
from regard.train.evaluation import score_texts

NOUNS = {"Haus": "house", "Buch": "book", "Boot": "boat", "Hund": "dog", "Baum": "tree"}
ADJECTIVES = {"rot": "red", "alt": "old", "neu": "new", "gut": "good"}
PAIRS = [
    Pair(
        f"{noun} {word} wie {other}", f"{ADJECTIVES[word]} {NOUNS[noun]} like {NOUNS[other]}", "en"
    )
    for noun, word, other in product(NOUNS, ADJECTIVES, NOUNS)
]


def make_table(pairs):
    sizes, rows = list_phrases(pairs, ByteTokenizer())
    table = PhraseTable(*sizes)
    table.fill(rows)
    return table, Phrases(table, ByteTokenizer())


def test_an_answer_is_that_of_a_similar_text_else_of_the_network_else_by_word():
    table, phrases = make_table(PAIRS)
    known, new = "Hund gut wie Buch!", "rot Buch Boot Baum"
    network = Translation("a dog", -1.0, True, raw_score=0.5)
    assert phrases.answer(known, network) is network  # until limits are fitted
    table.limits.copy_(torch.tensor([0.7, 0.0]))
    assert phrases.answer(known, network).text == "good dog like book"
    assert phrases.answer(new, network) is network
    assert phrases.answer(new, network._replace(raw_score=-0.1)).text == "red book boat tree"


def test_limits_are_never_worse_on_valid_than_one_source_of_answers_alone():
    table, phrases = make_table(PAIRS[::2])
    valid = PAIRS[1::2]
    references = [pair.target for pair in valid]
    # the network is right about half of them, and mostly knows which
    answers = [
        Translation(pair.target if n % 2 else "the the the", -1.0, True, raw_score=n % 2 + n / 50)
        for n, pair in enumerate(valid)
    ]
    fit_limits(table, ByteTokenizer(), valid, answers)
    chosen = [phrases.answer(p.source, x).text for p, x in zip(valid, answers, strict=True)]
    alone = (
        [x.text for x in answers],
        [phrases.by_word(p.source) for p in valid],
        [phrases.nearest(p.source)[0] for p in valid],
    )
    scores = [score_texts(texts, references)["bleu"] for texts in alone]
    assert score_texts(chosen, references)["bleu"] >= max(scores)
    assert tuple(table.limits.tolist()) != NEVER


def test_capitals_are_as_the_tokenizer_reads_them():
    tokenizer = ByteTokenizer()
    tokenizer.normalizers = (*tokenizer.normalizers, "lower")
    pairs = [Pair(p.source.lower(), p.target, "en") for p in PAIRS]
    sizes, rows = list_phrases(pairs, tokenizer)
    table = PhraseTable(*sizes)
    table.fill(rows)
    assert Phrases(table, tokenizer).by_word("ROT HAUS") == "red house"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A network of two steps, with a phrase table."""
    folder = tmp_path_factory.mktemp("phrases")
    splits = {"train": PAIRS[::2], "valid": PAIRS[1::8], "test": PAIRS[3::8]}
    for name, pairs in splits.items():
        lines = (f"{pair.source}\t{pair.target}\n" for pair in pairs)
        (folder / f"{name}.tsv").write_text("".join(lines))
    data = PairsTask(
        folder=str(folder), train=("train.tsv",), valid=("valid.tsv",), test=("test.tsv",),
        tokenizer_type="bytes", phrase_table=True,
        source_language="de", target_language="en",
    )  # fmt: skip
    whole = replace(recipe("multi30k-de-en-transformer"), data=data, model=translator_tiny(9))
    small = ["steps=2", "warmup=1", "evaluate_every=1", "save_every=1", "dim=16", "device=cpu"]
    fit(whole, folder / "run", settings=[*small, "max_new_tokens=9"], skip=["report"])
    return load_run(folder / "run")


def test_a_run_answers_from_its_table_wherever_it_translates(run):
    sources, targets = zip(*((pair.source, pair.target) for pair in PAIRS[3::8]), strict=True)
    answers = run.translate(sources)["en"]
    limits = run.model.phrase_table.limits
    fitted = limits.clone()
    limits.copy_(torch.tensor(NEVER))
    network = run.translate(sources)["en"]
    limits.copy_(fitted)
    scores = [score_texts(texts, targets)["bleu"] for texts in (network, answers)]
    assert scores[1] > scores[0] + 10
    assert run.result["test"]["bleu"] == pytest.approx(run.evaluate("test").scores["bleu"])
    assert [x.prediction for x in run.evaluate("test").answers] == answers
    assert run.text_model.complete_target(sources[0], None, "en") == answers[0]  # of the page
    assert "word by word" in (run.folder / "CARD.md").read_text()


def test_what_does_not_read_the_table_refuses_it(run, tmp_path):
    with pytest.raises(ConfigError, match=r"^phrase_table: needs \(\) to export, got \("):
        run.export(tmp_path / "model.onnx")
    with pytest.raises(ConfigError, match="phrase_table: needs one direction, got bidirectional"):
        replace(run.data, bidirectional=True)
    with pytest.raises(ConfigError, match=r"^phrase_table: needs three sizes, or none, got \[3\]"):
        translator_tiny(9, phrase_table=(3,))
    gru = override_settings(recipe("multi30k-de-en-gru"), ["dim=16", "hidden=16"]).model
    with pytest.raises(ConfigError, match="phrase_table: needs a Translator, got a Recurrent"):
        run.data.resolve(gru, run.tokenizer)
