"""SentencePiece models and tokenizer.json of Hugging Face give the ids of their own libraries."""

import io
import json
import random
import struct
import sys
from typing import Any

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Engine
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from regard.data import HuggingFaceTokenizer, SentencePieceTokenizer, Tokenizer
from regard.data.text.tokenizer_file import read_tokenizer
from regard.errors import ConfigError, FileError

ODD = [
    *("", " ", "  two\t\n words ", "a\u00a0b", "全角\u3000スペース", "ﬁne ½ ² ™ ①", "ｶﾞ か\u3099"),
    *("cafe\u0301 e\u0323\u0301", "각 \u1100\u1161\u11a8", "😀👨\u200d👩\u200d👧🇩🇪👍🏽"),
    *("नमस्ते दुनिया", "สวัสดี", "مرحبا ﷺ", "שָׁלוֹם", "▁literal ▁ under ▁", "<s>x</s><pad><unk>"),
    *("zero\u200bwidth\ufeff", "\x01\x7f", "0.333333333", "111111 ((()))", "a\u2028b\x85c"),
    *("𝕳𝖊𝖑𝖑𝖔", "\U0010ffff"),
]  # fmt: skip
WORDS = [
    *("low", "lower", "lowest", "new", "newer", "the", "river", "Straße", "über", "дом", "вода"),
    *("日本", "水の", "😀", "11", "111", "((", "))"),
]


def sentences(count: int) -> list[str]:
    rng = random.Random(0)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, 9))) for _ in range(count)]


def field(number: int, value: Any) -> bytes:
    """A field of a protobuf message: an integer, a float, or bytes."""
    if isinstance(value, int):
        return bytes([*varint(number << 3), *varint(value)])
    if isinstance(value, float):
        return bytes(varint(number << 3 | 5)) + struct.pack("<f", value)
    return bytes([*varint(number << 3 | 2), *varint(len(value))]) + value


def varint(value: int) -> list[int]:
    return [value] if value < 128 else [value & 127 | 128, *varint(value >> 7)]


def write_model(path, pieces, kind: int, trainer=b"", normalizer=b"") -> Any:
    """A .model file; pieces are (text, score, type)."""
    rows = (
        field(1, field(1, text.encode()) + field(2, float(score)) + field(3, type_))
        for text, score, type_ in pieces
    )
    path.write_bytes(b"".join(rows) + field(2, field(3, kind) + trainer) + field(3, normalizer))
    return path


SPECIAL = [("<unk>", 0, 2), ("<s>", 0, 3), ("</s>", 0, 3)]
LETTERS = [("▁", -3, 1), ("a", -4, 1), ("b", -4, 1), ("c", -4, 1)]


def tokens(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.id_to_token(i) for i in tokenizer.encode(text)]


def test_unigram_takes_the_pieces_with_the_best_sum(tmp_path):
    pieces = [*SPECIAL, *LETTERS, ("ab", -5, 1), ("bc", -6, 1), ("▁a", -5.5, 1)]
    tokenizer = Tokenizer.load(write_model(tmp_path / "m.model", pieces, kind=1))
    # " a"+"bc" = -11.5, " "+"ab"+"c" = -12, " a"+"b"+"c" = -13.5
    assert tokens(tokenizer, "abc") == [" a", "bc"]
    assert tokens(tokenizer, "ab") == [" ", "ab"]  # -8 beats -9.5
    assert tokenizer.encode("  ab  xyz") == [3, 7, 3, 0]  # unknown neighbours are one token
    assert tokenizer.offsets("  ab  xyz") == [(2, 2), (2, 4), (4, 6), (6, 9)]
    assert tokenizer.decode([9, 8, 2]) == "abc"


def test_pairs_merge_by_score_and_other_characters_become_bytes(tmp_path):
    byte_pieces = [(f"<0x{byte:02X}>", 0, 6) for byte in range(256)]
    pieces = [*SPECIAL, *byte_pieces, *LETTERS, ("bc", 0, 1), ("ab", -1, 1), ("▁ab", -2, 1)]
    file = write_model(tmp_path / "m.model", pieces, kind=2, trainer=field(35, 1))
    tokenizer = Tokenizer.load(file)
    assert tokens(tokenizer, "abc") == [" ", "a", "bc"]  # bc merges first
    assert tokens(tokenizer, "ab") == [" ab"]
    assert tokenizer.encode("é") == [3 + 256, 3 + 0xC3, 3 + 0xA9]
    assert tokenizer.decode(tokenizer.encode("ab é")) == "ab é"
    dropped = {tuple(tokenizer.with_dropout(0.5, f"{n}").encode("ab")) for n in range(20)}
    assert len(dropped) == 3  # " ab", " " "ab", " " "a" "b"


def test_ids_are_those_of_the_file_and_what_it_lacks_follows(tmp_path):
    file = write_model(tmp_path / "m.model", [*SPECIAL, *LETTERS], kind=1)
    tokenizer = Tokenizer.load(file, languages=("de", "fr"))
    assert (tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (0, 1, 2, 7)
    assert (tokenizer.language_id("fr"), tokenizer.vocab) == (9, 10)
    assert [tokenizer.id_to_token(i) for i in (1, 7, 9, 4)] == ["<s>", "<pad>", "<fr>", "a"]
    assert not {1, 2, 7, 8, 9} & set(tokenizer.encode("<s>a</s><pad><fr>"))
    back = Tokenizer.load(tokenizer.save(tmp_path / "run"))
    assert back.special_tokens == tokenizer.special_tokens
    assert back.encode("cab") == tokenizer.encode("cab")


FEW = [{}, {"byte_fallback": True, "character_coverage": 0.98, "pad_id": 3, "split_digits": True}]
MORE = [
    {"normalization_rule_name": "nfkc_cf", "user_defined_symbols": ["<sep>", "riv"]},
    {"normalization_rule_name": "identity", "remove_extra_whitespaces": False},
    {"treat_whitespace_as_suffix": True},
    {"split_by_whitespace": False, "add_dummy_prefix": False},
]


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize(
    "options", [*FEW, *(pytest.param(x, marks=pytest.mark.slow) for x in MORE)], ids=str
)
def test_sentencepiece_models_encode_and_decode_as_sentencepiece_does(tmp_path, kind, options):
    spm: Any = sentencepiece
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter([*sentences(300), *(text for text in ODD if text.strip())]),
        model_writer=model, model_type=kind, vocab_size=400, hard_vocab_limit=False,
        minloglevel=2, num_threads=1, **options,
    )  # fmt: skip
    (tmp_path / "m.model").write_bytes(model.getvalue())
    theirs = spm.SentencePieceProcessor(model_proto=model.getvalue())
    ours = Tokenizer.load(tmp_path / "m.model")
    rng = random.Random(1)
    mixed = ["".join(rng.choices("".join(ODD) + "▁  low", k=40)) for _ in range(60)]
    mixed += ["".join(rng.choices("1(▁ a", k=60)) for _ in range(60)]
    for text in [*ODD, *sentences(100), *mixed]:
        ids = theirs.encode(text)
        assert ours.encode(text) == ids
        assert ours.decode(ids) == theirs.decode(ids)
    assert ours.encode("\ud800") == ours.encode("?")
    assert (ours.bos_id, ours.eos_id, ours.unk_id) == (1, 2, 0)


def engines() -> dict[str, Engine]:
    """A tokenizer.json like those of GPT-2, BERT, T5 and Llama 2."""
    special = ["<pad>", "<s>", "</s>", "<unk>"]
    trained, quiet = {}, {"show_progress": False}
    for name, model, trainer in (
        ("bytes", models.BPE(), trainers.BpeTrainer(
            special_tokens=["<|endoftext|>"], vocab_size=350,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **quiet)),
        ("wordpiece", models.WordPiece(unk_token="[UNK]"), trainers.WordPieceTrainer(
            special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"], vocab_size=120, **quiet)),
        ("unigram", models.Unigram(), trainers.UnigramTrainer(
            special_tokens=special, unk_token="<unk>", vocab_size=120, **quiet)),
        ("pairs", models.BPE(unk_token="<unk>", fuse_unk=True), trainers.BpeTrainer(
            special_tokens=["<unk>", "<s>", "</s>"], vocab_size=120, **quiet)),
    ):  # fmt: skip
        engine = trained[name] = Engine(model)
        if name == "bytes":
            engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            engine.decoder = decoders.ByteLevel()
        elif name == "wordpiece":
            engine.normalizer = normalizers.BertNormalizer()
            engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
            engine.decoder = decoders.WordPiece()
        else:
            engine.pre_tokenizer = pre_tokenizers.Metaspace()
            engine.decoder = decoders.Metaspace()
        engine.train_from_iterator(sentences(300), trainer)
        engine.enable_padding(length=64)
        engine.enable_truncation(8)
    return trained


ENGINES = engines()
ROLES = {  # of pad, bos, eos, unk; None comes after the vocabulary
    "bytes": (None, None, 0, None), "wordpiece": (0, 2, 3, 1), "unigram": (0, 1, 2, 3),
    "pairs": (None, 1, 2, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", ENGINES)
def test_a_tokenizer_json_keeps_its_ids(tmp_path, name):
    engine = ENGINES[name]
    engine.save(str(tmp_path / "tokenizer.json"))
    ours = Tokenizer.load(tmp_path, languages=("de",))
    assert isinstance(ours, HuggingFaceTokenizer)
    engine = Engine.from_str(engine.to_str())
    engine.no_padding()
    engine.no_truncation()
    for text in [*sentences(50), *ODD]:
        if "<" not in text:
            ids = engine.encode(text, add_special_tokens=False).ids
            assert ours.encode(text) == ids
            kept = [i for i in ids if i not in ours.special_tokens]
            assert ours.decode([ours.bos_id, *ids, ours.eos_id]) == engine.decode(kept)
    roles = (ours.pad_id, ours.bos_id, ours.eos_id, ours.unk_id)
    size = engine.get_vocab_size()
    assert [i if i < size else None for i in roles] == list(ROLES[name])
    assert ours.language_id("de") == ours.vocab - 1
    assert len(set(roles)) == 4
    text = "</s><pad>[SEP]<|endoftext|>"
    assert not {i for i in ours.encode(text) if i in ours.special_tokens} - {ours.unk_id}
    assert name != "bytes" or ours.decode(ours.encode(text)) == text
    back = Tokenizer.load(ours.save(tmp_path / "run").parent)
    assert back.special_tokens == ours.special_tokens
    assert all(back.encode(text) == ours.encode(text) for text in sentences(20))


def test_tokenizer_config_names_the_special_tokens(tmp_path):
    ENGINES["unigram"].save(str(tmp_path / "tokenizer.json"))
    config = {"eos_token": {"content": "<s>"}, "cls_token": "</s>", "pad_token": "<s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours = Tokenizer.load(tmp_path)
    assert (ours.bos_id, ours.eos_id) == (2, 1)
    assert ours.pad_id == ENGINES["unigram"].get_vocab_size()  # not that of the end token
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<|end|>"}')
    with pytest.raises(FileError, match=r"tokenizer.json: eos_token: needs one of .*</s>.*\|end\|"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("name", ["bytes", "pairs"])
@given(st.text("lowernstihavu ß日本", max_size=20), st.integers(0, 99))
def test_dropout_spells_the_same_text(name, text, key):
    body = {"json": ENGINES[name].to_str(), "names": {}}
    ours = HuggingFaceTokenizer(body)
    plain, dropped = ours.encode(text), ours.with_dropout(0.5, f"{key}").encode(text)
    assert ours.decode(dropped) == ours.decode(plain)
    assert ours.with_dropout(0.0, f"{key}").encode(text) == plain
    assert ours.with_dropout(0.5, f"{key}").encode(text) == dropped
    assert min(dropped, default=0) >= 0


def test_dropout_is_refused_where_nothing_is_merged():
    with pytest.raises(ConfigError, match="bpe_dropout: needs byte pairs"):
        HuggingFaceTokenizer({"json": ENGINES["unigram"].to_str(), "names": {}}).with_dropout(
            0.1, ""
        )


def test_words_characters_and_unused_pieces_encode_too(tmp_path):
    file, pieces = tmp_path / "m.model", [*SPECIAL, *LETTERS]
    for content, expected in [
        (([*pieces, ("▁ab", -1, 1)], 3), [" ab"]),
        ((pieces, 4), [" ", "a", "b"]),
        (([*pieces, ("ab", -1, 5)], 2), [" ", "a", "b"]),
    ]:
        tokenizer = Tokenizer.load(write_model(file, *content))
        assert tokens(tokenizer, "ab") == expected
        assert tokenizer.is_bpe == (content[1] == 2)


def test_what_cannot_be_read_is_refused(tmp_path, users_view, monkeypatch):
    file, pieces = tmp_path / "m.model", [*SPECIAL, *LETTERS]
    with pytest.raises(FileError, match="m.model: needs a SentencePiece model, got other content"):
        Tokenizer.load(write_model(file, LETTERS, 1))  # without an unknown piece
    whole = write_model(file, pieces, 1).read_bytes()
    for size in (0, 1, 7, len(whole) // 2):
        file.write_bytes(whole[:size])
        with pytest.raises(FileError, match="m.model: needs"):
            Tokenizer.load(file)
    with pytest.raises(FileError, match="No such file"):
        Tokenizer.load(tmp_path / "none.model")
    (tmp_path / "tokenizer.json").write_text('{"model": {}, "added_tokens": []}')
    with pytest.raises(FileError, match=r"tokenizer.json: needs the state of HuggingFaceTokenizer"):
        Tokenizer.load(tmp_path)
    assert read_tokenizer(write_model(file, pieces, 1))[0]["kind"] == "SentencePieceTokenizer"
    assert issubclass(SentencePieceTokenizer, Tokenizer)
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(FileError, match=r"m.model: .*try pip install 'regard\[sentencepiece\]'"):
        Tokenizer.load(file)
