"""Paraphrases have one meaning, are read like the CLDR form, and leak no held-out fact."""

import unicodedata
from itertools import islice

import pytest
from babel.dates import format_time
from hypothesis import given
from hypothesis import strategies as st

from regard.data import (
    ByteTokenizer,
    Pair,
    Phrases,
    Tokenizer,
    draw_fact,
    fact_split,
    format_fact,
    normalize_text,
)
from regard.data.content.phrases.facts import CURRENCIES, DURATION_UNITS, FACT_KINDS, UNITS
from regard.data.content.phrases.ood_text import ood_text
from regard.data.content.phrases.paraphrases import (
    CURRENCY_NAMES,
    paraphrase,
    spell_number,
    typical_fact,
)
from regard.data.content.phrases.paraphrases import DURATION_NAMES as SPAN_NAMES
from regard.data.content.phrases.paraphrases import UNIT_NAMES as UNIT_NAMES
from regard.data.text.tokenizer_file import TOKENIZER_FILE
from regard.errors import ConfigError, FileError
from regard.tasks.translation.phrases import NORMALIZE

SPACES = [chr(n) for n in range(0x10000) if unicodedata.category(chr(n)) == "Zs"]


def read(text: str) -> str:
    return normalize_text(text, NORMALIZE)


# ---- normalisation


def test_every_space_quote_dash_and_width_is_read_alike():
    assert len(SPACES) > 15
    assert {read(f"3:05{space}PM") for space in SPACES} == {"3:05 pm"}
    assert {read(f"o{quote}clock") for quote in "'’‘ʼ′"} == {"o'clock"}
    assert {read(f"2024{dash}03") for dash in "-‐‑–—−"} == {"2024-03"}
    assert read("５ｋｍ　＄") == "5km $"
    assert read("cafe\u0301") == read("café") == "café"
    assert read(" two\t\n days \u200b") == "two days"


def test_normalizers_are_applied_in_their_order():
    # 𝐀 has no lower case until NFKC has made it an A; ⁄ is what NFKC writes ½ with
    assert normalize_text("𝐀½", ("typography", "lower")) == "a1/2"
    assert normalize_text("𝐀½", ("lower", "typography")) == "A1/2"


def test_what_babel_writes_with_a_narrow_space_is_what_a_person_types():
    from datetime import time

    written = format_time(time(15, 5), "short", locale="en")
    assert "\u202f" in written
    assert read(written) == read("3:05 PM") == read("3:05 pm")


def test_a_tokenizer_keeps_its_normalisation_and_older_files_have_none(tmp_path):
    tokenizer = ByteTokenizer(("de",))
    older = tokenizer.save(tmp_path).read_text()
    assert "normalize" not in older
    tokenizer.normalizers = NORMALIZE
    tokenizer.save(tmp_path)
    back = Tokenizer.load(tmp_path)
    assert back.encode_input("３ DAYS") == back.encode("3 days") != back.encode("３ DAYS")
    (tmp_path / TOKENIZER_FILE).write_text(older)
    assert Tokenizer.load(tmp_path).normalizers == ()


@pytest.mark.usefixtures("users_view")
def test_a_step_that_does_not_exist_is_refused(tmp_path):
    tokenizer = ByteTokenizer()
    tokenizer.normalizers = ("upper",)
    with pytest.raises(ConfigError, match="normalizers: needs some of typography, .*, got"):
        tokenizer.save(tmp_path)
    tokenizer.normalizers = ("lower",)
    file = tokenizer.save(tmp_path)
    file.write_text(file.read_text().replace("lower", "upper"))
    with pytest.raises(FileError, match="needs checksum"):
        Tokenizer.load(tmp_path)


# ---- natural forms


def test_numbers_in_words():
    assert [spell_number(n) for n in (0, 13, 40, 99, 100, 101, 942, 1200, 25_000)] == [
        *("zero", "thirteen", "forty", "ninety-nine", "one hundred", "one hundred and one"),
        *("nine hundred and forty-two", "one thousand two hundred", "twenty-five thousand"),
    ]


def test_every_unit_span_and_currency_has_its_names():
    assert set(UNIT_NAMES) == set(UNITS)
    assert set(SPAN_NAMES) == set(DURATION_UNITS)
    assert set(CURRENCY_NAMES) == set(CURRENCIES)


def test_a_text_has_one_meaning_and_no_foreign_text_has_any():
    seen: dict[str, object] = {}
    for key in map(str, range(3000)):
        fact = typical_fact(draw_fact(key, "train", FACT_KINDS[:-1]), key)
        for text in (paraphrase(fact, key), format_fact(fact, "en")):
            normalized = read(text).rstrip(".,;!?")
            assert seen.setdefault(normalized, (fact.meaning, fact.style)) == (
                fact.meaning,
                fact.style,
            )
    assert not {read(ood_text(str(n), "test")).rstrip(".,;!?") for n in range(300)} & set(seen)


@given(st.integers(0, 9999), st.sampled_from(["train", "valid", "test"]))
def test_a_usual_fact_stays_in_its_split(key, split):
    fact = draw_fact(f"{key}", split)
    assert fact_split(typical_fact(fact, f"{key}")) == split


def test_shares_are_of_training_alone_and_held_out_forms_are_cldrs():
    plain = Phrases(("en", "de"), source_languages=("en",), eval_size=40)
    mixed = Phrases(
        ("en", "de"), source_languages=("en",), eval_size=40, natural_fraction=0.5, ood_fraction=0.2
    )
    assert list(mixed.examples("test", 0)) == list(plain.examples("test", 0))
    some = list(islice(mixed.examples("train", 0), 1000))
    same = sum(a == b for a, b in zip(some, plain.examples("train", 0), strict=False))
    assert 0.25 < same / 1000 < 0.4
    assert 0.15 < sum(not pair.target for pair in some) / 1000 < 0.25
    assert list(islice(mixed.examples("train", 0, start=700), 5)) == some[700:705]


def test_held_out_forms_are_the_split_s_own():
    phrases = Phrases(("en", "de"), source_languages=("en",), eval_size=30)
    natural = list(phrases.natural_examples("valid"))
    assert len(natural) == len(list(phrases.ood_examples("valid"))) == 30
    cldr = {pair.target for pair in phrases.examples("valid", 0)}
    assert sum(pair.target in cldr for pair in natural) > 15  # the rest at a usual time, or larger
    assert all(isinstance(pair, Pair) and pair.target for pair in natural)
    assert not any(pair.target for pair in phrases.ood_examples("test"))


@pytest.mark.usefixtures("users_view")
def test_shares_beyond_all_are_refused():
    with pytest.raises(ConfigError, match="natural_fraction, ood_fraction: need 0 to 1 in sum"):
        Phrases(natural_fraction=0.7, ood_fraction=0.4)
