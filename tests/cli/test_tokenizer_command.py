"""`regard tokenizer` trains, shows and compares tokenizers."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from regard.cli import app
from regard.data import Tokenizer

TEXT = "the river über Straße дом вода 日本 水 😀\n" * 30 + "a newer house\n"


def regard(*args: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["tokenizer", *args])
    assert done.exit_code == code, done.output
    return done.output


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("corpus.txt").write_text(TEXT, encoding="utf-16")


@pytest.mark.parametrize("kind", ["bpe", "unigram", "words", "characters", "bytes"])
def test_train_writes_a_tokenizer_of_each_type(kind):
    out = regard("train", "corpus.txt", "--type", kind, "--vocab-size", "290", "-o", "mine.json")
    tokenizer = Tokenizer.load("mine.json")
    assert f"mine.json: {kind}, {tokenizer.vocab} ids" in out
    assert tokenizer.decode(tokenizer.encode("дом 日本\n")) == "дом 日本\n"
    assert tokenizer.vocab <= 290
    shown = regard("show", "mine.json", "the 日本").splitlines()
    ids = tokenizer.encode("the 日本")
    assert [int(line.split()[0]) for line in shown[-len(ids) :]] == ids
    assert shown[-1].split()[1].endswith("-6")
    assert "needs to be a new file" in regard("train", "corpus.txt", "-o", "mine.json", code=2)


def test_show_names_the_special_tokens_and_the_languages_of_a_run():
    shown = regard("show", "phrases", "3 Days, 日").splitlines()
    assert shown[0].endswith("PAD 0 <pad>, BOS 1 <start>, EOS 2 <end>, UNK 3 <unknown>")
    assert "de 5" in shown[1]
    assert shown[2].startswith("3| days|,")
    assert shown[3].split() == ["28", "0-1", "'3'"]


def test_stats_compare_tokenizers_line_by_line():
    regard("train", "corpus.txt", "--type", "characters", "-o", "letters.json")
    Path("other.txt").write_text("the ювелир\n")
    rows = [line.split() for line in regard(
        "stats", "letters.json", "phrases", "--text", "other.txt").splitlines()[1:]]  # fmt: skip
    # 11 tokens of 2 words and 17 bytes; ю, л and р are unknown, и too
    unknown = sum(c not in TEXT for c in "the ювелир\n")
    assert rows[0][1:] == [
        *("11", "5.50", f"{11 / 17:.3f}"), f"{unknown / 11:.2%}", "11", "letters.json"
    ]  # fmt: skip
    assert rows[1][-1] == "phrases"


def test_what_is_wrong_is_named():
    out = regard("train", "corpus.txt", "--type", "unigrams", code=2)
    assert "type: needs one of bpe, unigram, words, characters, bytes, got 'unigrams'" in out
    assert "vocab_size: needs 260" in regard("train", "corpus.txt", "--vocab-size", "9", code=2)
    assert not Path("tokenizer.json").exists()
    assert "nothing.txt" in regard("train", "nothing.txt", code=2)
