"""Every format gives the same pairs; every line is either a pair or in the report."""

import csv
import gettext
import gzip
import json
import time
import tracemalloc
from io import BytesIO
from itertools import islice

import pytest
from babel.messages.catalog import Catalog
from babel.messages.mofile import write_mo
from babel.messages.pofile import write_po

from regard.data import Batches, ByteTokenizer, Pair, ParallelCorpus, pair_preprocessor
from regard.errors import ConfigError, FileError

PAIRS = [("one", "eins"), ('say "two"\n', "sag „zwei“\n"), ("three & <four>", "drei & <vier>")]
WANT = [(a.strip(), b.strip()) for a, b in PAIRS]


def catalog():
    made = Catalog(locale="de")
    for source, target in PAIRS:
        made.add(source, target)
    return made


def write(tmp_path, kind):
    file = tmp_path / f"pairs.{kind}"
    if kind.startswith("tsv"):
        text = "\n".join(f"{a}\t{b}\tnote" for a, b in WANT).replace('"\n', '"')
        file.write_bytes(gzip.compress(text.encode()) if kind == "tsv.gz" else text.encode())
    elif kind == "csv":
        with file.open("w", newline="") as out:
            csv.writer(out, delimiter=";").writerows(PAIRS)
    elif kind == "jsonl":
        file.write_text("\n".join(json.dumps({"1": a, "2": b}) for a, b in PAIRS))
    elif kind in ("po", "mo"):
        out = BytesIO()
        (write_po if kind == "po" else write_mo)(out, catalog())
        file.write_bytes(out.getvalue())
    elif kind == "tmx":
        from xml.sax.saxutils import escape

        units = "".join(
            f'<tu><tuv xml:lang="en-US"><seg>{escape(a)}</seg></tuv>\n'
            f'<tuv xml:lang="de"><seg>{escape(b)}</seg></tuv></tu>\n'
            for a, b in PAIRS
        )
        file.write_text(f"<?xml version='1.0'?>\n<tmx><body>\n{units}</body></tmx>")
    else:
        sides = tmp_path / "pairs.en", tmp_path / "pairs.de"
        for side, texts in zip(sides, zip(*WANT, strict=True), strict=True):
            side.write_bytes("\r\n".join(texts).encode("utf-8-sig"))
        return sides
    return file


def source(place, **more):
    return ParallelCorpus(place, place, place, languages=("en", "de"), **more)


@pytest.mark.parametrize("kind", ["two", "tsv", "tsv.gz", "csv", "jsonl", "po", "mo", "tmx"])
def test_every_format_gives_the_same_pairs(kind, tmp_path):
    made = source(write(tmp_path, kind))
    assert sorted(made.examples("test", 0)) == sorted(Pair(a, b, "de") for a, b in WANT)
    assert (made.report.loaded, made.report.skipped) == (3, 0)


def test_a_compiled_catalog_is_read_as_gettext_reads_it(tmp_path):
    file = write(tmp_path, "mo")
    with file.open("rb") as opened:
        theirs = gettext.GNUTranslations(opened)
    for pair in source(file).examples("test", 0):
        assert theirs.gettext(pair.source).strip() in (pair.target, pair.source)


def test_plurals_fuzzy_and_untranslated_messages(tmp_path):
    file = tmp_path / "a.po"
    file.write_text(
        'msgid ""\nmsgstr "Header: x\\n"\n\n'
        '#, fuzzy\nmsgid "guess"\nmsgstr "geraten"\n'
        'msgid "open"\nmsgstr ""\n'
        'msgctxt "many"\nmsgid "%d day"\nmsgid_plural "%d days"\n'
        'msgstr[0] "%d Tag"\nmsgstr[1] "%d "\n"Tage"\nrubbish\n'
    )
    made = source(file)
    found = [(p.source, p.target) for p in made.examples("test", 0)]
    assert found == [("%d day", "%d Tag"), ("%d days", "%d Tage")]
    assert dict(made.report.reasons) == {
        "marked fuzzy": 1,
        "an empty side": 1,
        "neither a keyword nor a quoted text": 1,
    }
    assert made.report.locations["marked fuzzy"] == ["a.po:5"]


def test_every_bad_line_is_counted_by_reason_and_named(tmp_path):
    file = tmp_path / "bad.tsv"
    lines = [
        b"one\teins",
        b"no tab",
        b"\tleer",
        b"\xff\tx",
        b"a\t" + b"b" * 50,
        b"c" * 2000 + b"\td",
    ]
    file.write_bytes(b"\n".join(lines) + b"\n")
    made = source(file)
    assert len(list(made.examples("test", 0))) == 1
    assert made.report.loaded + made.report.skipped == len(lines)
    report = str(made.report)
    for place in (
        "1 column: bad.tsv:2",
        "empty side: bad.tsv:3",
        "bad.tsv:4",
        "bad.tsv:5",
        "1000 characters: bad.tsv:6",
    ):
        assert place in report


def test_lines_without_a_partner_are_counted(tmp_path):
    one, two = tmp_path / "a", tmp_path / "b"
    one.write_text("a\nb\nc\n")
    two.write_text("A\n")
    made = source((one, two))
    assert len(list(made.examples("test", 0))) == 1
    assert made.report.reasons == {"no such line in b": 2}


def test_a_broken_memory_gives_what_came_before_and_says_where(tmp_path):
    file = write(tmp_path, "tmx")
    file.write_text(file.read_text().partition("three")[0])
    made = source(file)
    assert len(list(made.examples("test", 0))) == 2
    assert "broken XML" in str(made.report)


# ---- translation memories of others


def memory(tmp_path, body: str, *, head: str = "<?xml version='1.0'?>", encoding: str = "utf-8"):
    file = tmp_path / "m.tmx"
    document = f"{head}\n<tmx version='1.4'><header/><body>\n{body}</body></tmx>"
    file.write_bytes(document.encode(encoding))
    return source(file)


def unit(source: str, target: str, languages: tuple[str, str] = ("en", "de")) -> str:
    one, other = languages
    return (
        f'<tu><tuv xml:lang="{one}"><seg>{source}</seg></tuv>'
        f'<tuv xml:lang="{other}"><seg>{target}</seg></tuv></tu>\n'
    )


def texts(made: ParallelCorpus) -> list[tuple[str, str]]:
    return [(pair.source, pair.target) for pair in made.pairs("test")]


@pytest.mark.parametrize(
    ("declared", "encoding"),
    [
        ("", "utf-8"),
        ("", "utf-8-sig"),
        ("", "utf-16"),
        ("utf-16", "utf-16-le"),
        ("UTF-16", "utf-16-be"),
        ("UTF-16", "utf-8"),  # converted by a tool that left the declaration alone
        ("windows-1252", "cp1252"),
        ("Shift_JIS", "shift_jis"),  # two bytes a character: expat alone refuses it
        ("gb18030", "gb18030"),
    ],
)
def test_a_memory_is_read_in_the_encoding_it_has(tmp_path, declared, encoding):
    other = "drei" if encoding == "cp1252" else "三つ"
    head = f"<?xml version='1.0' encoding='{declared}'?>" if declared else "<?xml version='1.0'?>"
    assert texts(memory(tmp_path, unit("three", other), head=head, encoding=encoding)) == [
        ("three", other)
    ]


@pytest.mark.parametrize("declared", ["klingon", "zlib", "undefined", "hex"])
def test_an_unknown_encoding_is_named(tmp_path, declared):
    made = memory(tmp_path, unit("a", "b"), head=f"<?xml version='1.0' encoding='{declared}'?>")
    with pytest.raises(FileError, match=f"needs a known encoding, got '{declared}'"):
        texts(made)


def test_bytes_that_are_not_of_the_declared_encoding_end_the_memory(tmp_path):
    made = memory(tmp_path, unit("a", "b") * 900 + unit("ü", "ä"), encoding="latin-1")
    assert len(texts(made)) > 600
    assert "can't decode byte 0xfc" in str(made.report)


def test_an_external_doctype_is_accepted_and_never_loaded(tmp_path):
    head = "<?xml version='1.0'?>\n<!DOCTYPE tmx SYSTEM \"tmx14.dtd\">"
    assert texts(memory(tmp_path, unit("a", "b"), head=head)) == [("a", "b")]
    (tmp_path / "tmx14.dtd").write_text('<!ENTITY x "loaded">')
    made = memory(tmp_path, unit("&x;", "b") + unit("c", "d"), head=head)
    assert texts(made) == [("c", "d")]
    assert dict(made.report.reasons) == {"an unknown entity, &x;": 1}


def test_entities_that_grow_are_refused_before_they_do(tmp_path):
    laughs = "".join(f"<!ENTITY a{n} '" + f"&a{n - 1};" * 10 + "'>" for n in range(1, 10))
    head = f'<?xml version="1.0"?>\n<!DOCTYPE tmx [<!ENTITY a0 "ha">{laughs}]>'
    with pytest.raises(
        FileError, match=r"needs a DOCTYPE without inline declarations, .* in line 2"
    ):
        texts(memory(tmp_path, unit("&a9;", "b"), head=head))


def test_markup_in_a_segment_is_no_text_and_highlights_are(tmp_path):
    held = '<bpt i="1">&lt;b&gt;</bpt>one <hi>two</hi><ept i="1">&lt;/b&gt;</ept>'
    held += '<ph x="1">{\\field<sub>a note</sub>}</ph> three<it pos="end">}</it>'
    assert texts(memory(tmp_path, unit(held, "drei"))) == [("one two three", "drei")]


def test_languages_by_either_attribute_and_an_exact_one_before_a_region(tmp_path):
    both = '<tu><tuv lang="EN_us"><seg>color</seg></tuv><tuv lang="de-AT"><seg>Jänner</seg></tuv>'
    both += '<tuv xml:lang="de"><seg>Januar</seg></tuv><tuv xml:lang="den"><seg>x</seg></tuv></tu>'
    assert texts(memory(tmp_path, both)) == [("color", "Januar")]


def test_a_unit_within_a_unit_or_a_language_twice_is_left_out_whole(tmp_path):
    body = f"<tu>{unit('a', 'b')}</tu>{unit('c', 'd', ('en', 'en'))}{unit('e', 'f')}"
    made = memory(tmp_path, body)
    assert texts(made) == [("e", "f")]
    assert dict(made.report.reasons) == {"nested units": 1, "two texts in en": 1}


@pytest.mark.parametrize(
    "body",
    [
        unit("a &amp; " * 500_000, "b"),
        unit("a\n" * 1_000_000, "b"),
        "<tu><prop x='" + "a" * 4_000_000 + "'/></tu>",
        f"<!--{'a' * 4_000_000}-->",
        "<hi>" * 1_000_000,
    ],
    ids=["pieces", "lines", "attribute", "comment", "depth"],
)
def test_four_megabytes_of_anything_take_no_memory_and_no_time(tmp_path, body):
    made = memory(tmp_path, body)
    began = time.process_time()
    tracemalloc.start()
    assert texts(made) == []
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert made.report.skipped == 1
    assert peak < 30_000_000
    assert time.process_time() - began < 5  # quadratic, they took 20 s and more


def test_a_source_sentence_is_in_one_split_whatever_its_translations(tmp_path):
    file = tmp_path / "a.tsv"
    file.write_text("".join(f"s{i % 200}\tt{i}\n" for i in range(400)))
    made = ParallelCorpus(file)
    found = {s: {p.source for p in made.pairs(s)} for s in ("train", "valid", "test")}
    assert sum(map(len, found.values())) == len(set.union(*found.values())) == 200
    assert all(found.values())


def test_a_split_without_pairs_is_an_error(tmp_path):
    file = tmp_path / "a.tsv"
    file.write_text("one\t\n")
    for split in ("train", "valid", "test"):
        with pytest.raises(FileError, match=r"a.tsv: needs pairs, got none that can be used"):
            next(source(file).examples(split, 0))


def test_train_repeats_and_starts_at_any_example(tmp_path):
    made = source(write(tmp_path, "tsv"))
    whole = list(islice(made.examples("train", 0), 20))
    assert whole[:3] == whole[3:6]
    for start in (1, 3, 10):
        assert list(islice(made.examples("train", 0, start), 20 - start)) == whole[start:]


def test_pairs_make_batches(tmp_path):
    made = source(write(tmp_path, "tsv"))
    batch = next(
        iter(
            Batches(made, pair_preprocessor(ByteTokenizer(("de",))), split="test", batch_tokens=500)
        )
    )
    assert batch["source"].shape[0] == 3


def test_memory_does_not_grow_with_the_file(tmp_path):
    file = tmp_path / "long.tsv"
    file.write_text("a sentence of text\tein Satz\n" * 10_000)
    tracemalloc.start()
    count = sum(1 for _ in source(file).examples("test", 0))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 10_000
    assert peak < 200_000  # of 290,000 bytes, a file being read


@pytest.mark.usefixtures("users_view")
def test_mistakes_with_pairs_are_reported_in_one_line(tmp_path):
    file = tmp_path / "a.tsv"
    file.write_text("one\n")
    with pytest.raises(FileError, match=r"a\.tsv:1: 1 column; try on_error='skip'"):
        list(source(file, on_error="raise").examples("test", 0))
    with pytest.raises(FileError, match="needs pairs, got none"):
        next(source(file).examples("train", 0))
    with pytest.raises(FileError, match="needs to be a file"):
        ParallelCorpus(tmp_path / "nothing.tsv")
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(FileError, match="try two files"):
        ParallelCorpus(tmp_path / "a.txt")
    with pytest.raises(ConfigError, match="need source and target of the .tmx"):
        list(ParallelCorpus(write(tmp_path, "tmx")).pairs("train"))
    (tmp_path / "a.mo").write_text("x")
    with pytest.raises(FileError, match="needs to be a compiled catalog"):
        list(source(tmp_path / "a.mo").pairs("train"))


def test_a_folder_stands_for_its_catalogs_and_each_bad_line_is_named_by_its_file(tmp_path):
    for name, text in (("a.po", "one"), ("sub/b.po", "two")):
        (tmp_path / "de" / name).parent.mkdir(parents=True, exist_ok=True)
        message = f'msgid "{text}"\nmsgstr "{text.upper()}"\n\nmsgid "{name}"\nmsgstr ""\n'
        (tmp_path / "de" / name).write_text(message)
    corpus = ParallelCorpus(tmp_path / "de", tmp_path / "de", tmp_path / "de")
    assert [pair.target for pair in corpus.pairs("test")] == ["ONE", "TWO"]
    assert [file.name for file in corpus.files] == ["a.po", "b.po"] * 3
    assert "a.po:4, b.po:4" in str(corpus.report)


def test_text_that_excel_saved_as_unicode_is_a_table(tmp_path):
    file = tmp_path / "pairs.txt"
    file.write_bytes('one, two\t"eins ""zwei"""\r\nthree\tdrei\r\n'.encode("utf-16"))
    corpus = ParallelCorpus(file, file, file)
    pairs = [(pair.source, pair.target) for pair in corpus.pairs("test")]
    assert pairs == [("one, two", 'eins "zwei"'), ("three", "drei")]
