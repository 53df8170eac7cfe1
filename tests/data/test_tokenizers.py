"""Decoding inverts encoding, also after saving; a special token is never text."""

import json
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data import (
    BPETokenizer,
    ByteTokenizer,
    CharTokenizer,
    Phrases,
    Tokenizer,
    WordTokenizer,
    iter_texts,
)
from regard.errors import ConfigError, FileError

TEXTS = list(iter_texts(islice(Phrases().examples("train", 0), 150)))
MADE = {
    "bytes": ByteTokenizer(("de", "fr")),
    "characters": CharTokenizer.train(TEXTS, languages=("de", "fr")),
    "words": WordTokenizer.train(TEXTS, languages=("de", "fr")),
    "numbers": WordTokenizer.train(TEXTS, languages=("de", "fr"), max_digits=3),
    "bpe": BPETokenizer.train(TEXTS, vocab_size=400, languages=("de", "fr")),
}
LETTERS = sorted({character for text in TEXTS for character in text})
every = pytest.mark.parametrize("tokenizer", MADE.values(), ids=MADE.keys())


def test_a_word_carries_the_space_before_it():
    tokenizer = WordTokenizer.train(["3 days, 日本"])
    assert [tokenizer.id_to_token(i) for i in tokenizer.encode("3 days, 日本")] == [
        *("3", " days", ",", " ", "日", "本")
    ]


@every
@given(st.text(LETTERS))
def test_text_of_known_characters_comes_back(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("name", ["bytes", "bpe"])
@given(st.text())
def test_any_text_comes_back_from_bytes(name, text):
    assert MADE[name].decode(MADE[name].encode(text)) == text


@given(st.text(), st.integers(1, 4))
def test_cutting_into_words_loses_nothing(text, digits):
    tokenizer = WordTokenizer.train([text], max_digits=digits)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert "".join(tokenizer.id_to_token(i) for i in tokenizer.encode(text)) == text


@every
@given(st.text())
def test_text_never_becomes_a_special_token(tokenizer, text):
    for said in (text, "<pad><start><end><de>"):
        ids = tokenizer.encode(said)
        assert all(i >= tokenizer.first_text_id or i == tokenizer.unk_id for i in ids)
        assert all(i < tokenizer.vocab for i in ids)


@every
def test_special_tokens_are_not_shown_in_text(tokenizer):
    ids = tokenizer.encode("3")
    around = [
        tokenizer.bos_id,
        tokenizer.language_id("fr"),
        *ids,
        tokenizer.eos_id,
        tokenizer.pad_id,
    ]
    assert tokenizer.decode(around) == "3"
    assert [tokenizer.id_to_token(i) for i in around] == ["<start>", "<fr>", "3", "<end>", "<pad>"]


@every
def test_it_comes_back_from_its_file(tokenizer, tmp_path):
    back = Tokenizer.load(tokenizer.save(tmp_path).parent)
    assert type(back) is type(tokenizer)
    assert (back.vocab, back.languages) == (tokenizer.vocab, tokenizer.languages)
    for text in TEXTS:
        assert back.encode(text) == tokenizer.encode(text)
        assert back.decode(back.encode(text)) == text


def test_training_twice_gives_the_same_ids():
    for kind, more in (
        (CharTokenizer, {}),
        (WordTokenizer, {}),
        (BPETokenizer, {"vocab_size": 350}),
    ):
        one, two = (kind.train(TEXTS, **more) for _ in range(2))
        assert [one.encode(text) for text in TEXTS] == [two.encode(text) for text in TEXTS]


def test_a_short_vocabulary_keeps_the_frequent_words_and_spells_the_rest():
    whole = WordTokenizer.train([" one one two"])
    short = WordTokenizer.train([" one one two"], vocab_size=whole.vocab - 1)
    assert short.decode(short.encode("one two")) == "one two"
    assert len(short.encode(" one")) == 1
    assert len(short.encode(" two")) == 4


@given(st.integers(0, 10**6), st.integers(0, 255))
def test_a_damaged_file_is_refused(tmp_path_factory, where, byte):
    folder = tmp_path_factory.mktemp("damaged")
    file = MADE["words"].save(folder)
    whole = bytearray(file.read_bytes())
    place = where % len(whole)
    if whole[place] == byte:
        return
    whole[place] = byte
    file.write_bytes(whole)
    try:
        back = Tokenizer.load(folder)
    except FileError:
        return
    assert json.loads(whole)  # a change without meaning, as of a space
    assert back.encode(TEXTS[0]) == MADE["words"].encode(TEXTS[0])


@pytest.mark.usefixtures("users_view")
def test_one_changed_letter_is_noticed(tmp_path):
    file = CharTokenizer.train(["ab"]).save(tmp_path)
    file.write_text(file.read_text().replace('"b"', '"c"'))
    with pytest.raises(FileError, match="needs checksum"):
        Tokenizer.load(tmp_path)


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "needs valid JSON"),
        ("[1]", "got other keys"),
        ('{"model": {}}', "got other keys"),
        (b"\xff\xfe", "needs valid JSON"),
    ],
)
def test_a_foreign_file_is_refused(text, said, tmp_path):
    file = tmp_path / "tokenizer.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(FileError, match=said):
        Tokenizer.load(tmp_path)


@pytest.mark.usefixtures("users_view")
def test_mistakes_are_reported_in_one_line(tmp_path):
    with pytest.raises(FileError, match="needs to be a file"):
        Tokenizer.load(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="language: needs one of de fr, got 'dee'; try de"):
        MADE["bytes"].language_id("dee")
    with pytest.raises(ConfigError, match="languages: need to differ"):
        ByteTokenizer(("de", "de"))
    with pytest.raises(ConfigError, match="vocab_size: needs 260 for the bytes alone, got 100"):
        BPETokenizer.train(TEXTS, vocab_size=100)
    with pytest.raises(
        ConfigError, match="vocab_size: needs 7 for the characters and special tokens, got 5"
    ):
        WordTokenizer.train(["abc"], vocab_size=5)
    with pytest.raises(ConfigError, match="ids: need to be from 0 to 261, got 300"):
        MADE["bytes"].decode([300])
