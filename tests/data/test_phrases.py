"""Phrases match CLDR, no test fact is trained on, and a seed determines everything."""

import os
import subprocess
import sys
from datetime import date
from datetime import time as clock
from decimal import Decimal
from itertools import islice
from zlib import crc32

import pytest
from babel.dates import format_date, format_skeleton, format_time
from babel.lists import format_list
from babel.numbers import format_currency
from babel.units import format_unit
from hypothesis import given
from hypothesis import strategies as st

from regard.data import Fact, Pair, Phrases, count_facts, draw_fact, fact_split, format_fact
from regard.data.content.phrases.facts import LIST_ITEM_KINDS
from regard.data.content.phrases.source import LANGUAGES
from regard.errors import ConfigError

numbers = st.integers(0, 9999)
languages = st.sampled_from(LANGUAGES)


def test_a_fact_in_several_languages():
    fact = Fact("duration", ((2, "duration-hour"), (1, "duration-minute")))
    said = {language: format_fact(fact, language) for language in ("en", "de", "cs", "ja")}
    assert said == {
        "en": "2 hours and 1 minute",
        "de": "2 Stunden und 1 Minute",
        "cs": "2 hodiny a\xa01 minuta",
        "ja": "2 時間、1 分",
    }


def test_there_are_twelve_languages_and_over_ten_million_facts():
    assert len(LANGUAGES) >= 12
    assert count_facts()["date"] == 36525 + 1200 + 366
    assert sum(n for kind, n in count_facts().items() if kind != "list") > 10**7


def babel(fact, language):
    """The same by Babel's own functions, the slow way."""
    kind, value = fact.kind, fact.value
    if kind == "time":
        return format_time(clock(*value), "short", locale=language)
    if kind == "date":
        year, month, day = (*value, 1)[:3]
        given = date(year or 2000, month, day)
        if fact.style:
            return format_date(given, fact.style, language)
        return format_skeleton("yMMMM" if len(value) == 2 else "MMMMd", given, locale=language)
    if kind == "unit":
        number, places, unit = value
        number = Decimal(number).scaleb(-places) if places else number
        long = format_unit(number, unit, "long", locale=language)
        return format_unit(number, unit, "short", locale=language) if unit in long else long
    return format_currency(
        Decimal(value[0]).scaleb(-2), value[1], locale=language, format_type=fact.style
    )


@given(st.lists(numbers, min_size=2, max_size=3), languages, st.sampled_from(["standard", "or"]))
def test_the_fast_formatter_matches_babel(keys, language, style):
    parts = [draw_fact(f"{key}", "train", (kind,)) for key in keys for kind in LIST_ITEM_KINDS]
    slow = [babel(part, language) for part in parts]
    assert [format_fact(part, language) for part in parts] == slow
    assert format_fact(Fact("list", tuple(parts), style), language) == format_list(
        slow, style, language
    )


@given(numbers)
def test_formatted_facts_have_no_placeholders_or_codes(key):
    fact = draw_fact(f"{key}", "train")
    for language in LANGUAGES:
        text = format_fact(fact, language)
        assert text.strip() == text != ""
        assert "{" not in text
        assert "length-" not in text


def leaves(fact):
    return (
        [x for part in fact.value for x in leaves(part)]
        if fact.kind in ("list", "moment")
        else [fact]
    )


def test_splits_share_no_fact_alone_or_in_a_list():
    phrases = Phrases(eval_size=500)
    seen = {
        split: [f for f, _, _ in islice(phrases.facts(split, seed), 2000)]
        for split, seed in (("train", 1), ("valid", 1), ("test", 1))
    }
    meanings = {s: {x.meaning for f in fs for x in leaves(f)} for s, fs in seen.items()}
    assert len(meanings["test"]) > 400
    assert not meanings["train"] & meanings["test"]
    assert not meanings["train"] & meanings["valid"]
    assert not meanings["valid"] & meanings["test"]
    texts = {s: {format_fact(f, x) for f in fs[:150] for x in LANGUAGES} for s, fs in seen.items()}
    assert not texts["train"] & texts["test"]


@given(numbers, st.sampled_from(["full", "long", ""]))
def test_the_split_depends_on_the_meaning_not_on_the_style(key, style):
    fact = draw_fact(f"{key}", "train")
    assert fact_split(fact) == fact_split(fact._replace(style=style)) == "train"


@pytest.mark.parametrize(  # the most word forms, and no spaces
    "language", ["pl", "ja", *(pytest.param(x, marks=pytest.mark.slow) for x in ("en", "cs"))]
)
def test_every_unit_word_of_the_test_split_is_in_training(language):
    phrases = Phrases(
        ("en", language, "de"), source_languages=(language,), kinds=("unit",), eval_size=400
    )
    learnt = {
        word
        for pair in islice(phrases.examples("train", 0), 6000)
        for word in pair.source.split()
        if not any(sign.isdigit() for sign in word)
    }
    asked = [pair.source.split() for pair in phrases.examples("test", 0)]
    assert {w for words in asked for w in words if not any(c.isdigit() for c in w)} <= learnt
    assert fact_split(Fact("unit", (1, 0, "length-mile"))) == "train"


def test_a_text_has_one_meaning_and_one_translation():
    meaning, translation = {}, {}
    drawn = [fact for fact, _, _ in islice(Phrases().facts("train", seed=3), 250)]
    styles = {"date": ("full", "long"), "money": ("name", "standard")}
    drawn += [x._replace(style=s) for x in drawn if x.style for s in styles.get(x.kind, ())]
    for fact in drawn:
        said = {language: format_fact(fact, language) for language in LANGUAGES}
        for language, text in said.items():
            assert meaning.setdefault(text, fact.meaning) == fact.meaning
            others = {to: target for to, target in said.items() if to != language}
            for to, target in others.items():
                assert translation.setdefault((text, to), target) == target


@given(st.integers(0, 60), st.sampled_from(["train", "test"]))
def test_start_skips_examples(start, split):
    phrases = Phrases(eval_size=70)
    whole = list(islice(phrases.examples(split, seed=7), start, start + 3))
    assert list(islice(phrases.examples(split, seed=7, start=start), 3)) == whole


def test_valid_and_test_are_finite_and_the_same_for_every_seed():
    phrases = Phrases(eval_size=20)
    assert len(list(phrases.examples("test", seed=0))) == 20
    assert list(phrases.examples("test", 0)) == list(phrases.examples("test", 1))
    assert list(phrases.examples("test", 0)) != list(phrases.examples("valid", 0))
    some = [list(islice(phrases.examples("train", seed), 20)) for seed in (0, 1)]
    assert some[0] != some[1]


def test_examples_do_not_depend_on_the_hash_seed():
    code = (
        "from itertools import islice; from zlib import crc32; from regard.data import Phrases\n"
        "print(crc32(repr(list(islice(Phrases().examples('train', 5), 200))).encode()))"
    )
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    here = crc32(repr(list(islice(Phrases().examples("train", 5), 200))).encode())
    assert int(done.stdout) == here


def test_source_and_target_languages_follow_the_options():
    pairs = list(
        islice(Phrases(("en", "de", "fr"), source_languages=("en",)).facts("train", 0), 50)
    )
    assert {source for _, source, _ in pairs} == {"en"}
    assert {target for _, _, target in pairs} == {"de", "fr"}
    assert isinstance(next(Phrases().examples("train", 0)), Pair)


@pytest.mark.slow
def test_ten_thousand_pairs_a_second_on_one_core():
    code = (
        "from itertools import islice; from time import process_time\n"
        "from regard.data import Phrases\n"
        "examples = Phrases().examples('train', 0); start = process_time()\n"
        "list(islice(examples, 20000)); print(20000 / (process_time() - start))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) > 10_000  # 17,000 to 24,000, the first reading of CLDR included


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"languages": ("en", "xx")}, "languages: need languages of CLDR, got 'xx'"),
        ({"languages": ("en",)}, "languages: need one beside the source, got en"),
        ({"kinds": ("date", "dates")}, "kinds: need some of .*got dates"),
        ({"kinds": ()}, "kinds: need some of .*got none"),
        ({"kinds": ("duration", "list")}, "beside list, got duration, list"),
    ],
)
def test_invalid_phrases_options_raise(made, said):
    with pytest.raises(ConfigError, match=said):
        Phrases(**made)
