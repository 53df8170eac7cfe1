"""Tables, labelled texts, tagged tokens and token caches of foreign files."""

import csv
import gzip
import io
import json

import numpy as np
import pytest
import torch

from regard.data import LoadReport, collate
from regard.data.table import detect_table, read_table
from regard.data.text.annotated import read_labeled_texts, read_tagged_tokens
from regard.data.token_cache import TokenCache, read_cache_header, write_token_cache
from regard.errors import ConfigError, FileError

ROWS = [("so, it began", "yes"), ('she said "no"\nand left', "no"), ("Grüße, 世界", "yes")]


def as_csv(delimiter):
    out = io.StringIO()
    csv.writer(out, delimiter=delimiter).writerows([("text", "label"), *ROWS])
    return out.getvalue()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_a_csv_of_any_delimiter_and_encoding(tmp_path, delimiter, encoding):
    file = tmp_path / "a.csv"
    file.write_bytes(as_csv(delimiter).encode(encoding))
    assert [row.values for row in read_table(file, ["text", "label"])] == ROWS
    assert [row.line for row in read_table(file, ["label"])] == [2, 3, 5]


def test_json_lines_and_gzip(tmp_path):
    file = tmp_path / "a.jsonl.gz"
    lines = [json.dumps({"label": b, "text": a, "id": n}) for n, (a, b) in enumerate(ROWS)]
    file.write_bytes(gzip.compress("\n".join([*lines, "{", '{"text": "x"}', "[1]"]).encode()))
    rows = list(read_table(file, ["text", "label"]))
    assert [row.values for row in rows[:3]] == ROWS
    assert [row.error for row in rows[3:]] == [
        "not a JSON object",
        "without label",
        "not a JSON object",
    ]


def test_quotes_of_a_tsv_are_text(tmp_path):
    file = tmp_path / "a.tsv"
    file.write_text('"a\tb"\n')
    assert [row.values for row in read_table(file, ["1", "2"], header=False)] == [('"a', 'b"')]


def test_bad_rows_name_their_line(tmp_path):
    file = tmp_path / "a.tsv"
    file.write_bytes(b"text\tlabel\none\tx\n\ntwo\nthr\xffee\ty\nfour\tz\n")
    rows = list(read_table(file, ["text", "label"]))
    assert [(row.line, row.error) for row in rows if row.error] == [
        (4, "1 column"),
        (5, "not UTF-8"),
    ]
    assert rows[-1].values == ("four", "z")


@pytest.mark.usefixtures("users_view")
def test_mistakes_with_tables_are_one_line(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("text,label\na,b\n")
    with pytest.raises(ConfigError, match="columns: need to be of text, label .*; try label"):
        list(read_table(file, ["text", "lable"]))
    with pytest.raises(FileError, match=r"needs to end in \.csv, \.tsv, \.jsonl"):
        detect_table(tmp_path / "a.xlsx", header=True)
    (tmp_path / "b.csv").write_text("\n\n")
    with pytest.raises(FileError, match="needs rows, got an empty file"):
        detect_table(tmp_path / "b.csv", header=True)
    (tmp_path / "c.csv.gz").write_bytes(gzip.compress(b"text,label\n" + b"a,b\n" * 9999)[:-20])
    with pytest.raises(FileError, match="needs a complete gzip file"):
        list(read_table(tmp_path / "c.csv.gz", ["text"]))


def test_labelled_texts_count_what_they_skip(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("id;sentence;class\n1;good;pos\n2;;neg\n3;bad;\n4;ugly;neg\n")
    report = LoadReport()
    texts = list(read_labeled_texts(file, report, text="sentence", label="class"))
    assert texts == [("good", "pos"), ("ugly", "neg")]
    assert (report.loaded, dict(report.reasons)) == (2, {"an empty text": 1, "an empty label": 1})


CONLL_2003 = """-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O

BRUSSELS NNP B-NP B-LOC
"""
CONLL_U = """# sent_id = 1
# text = Vámonos al mar
1-2\tVámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tVamos\tir\tVERB\t_\t_\t0\troot\t_\t_
2\tnos\tnosotros\tPRON\t_\t_\t1\tobj\t_\t_

"""


@pytest.mark.parametrize(
    ("text", "columns", "sentences"),
    [
        (CONLL_2003, (1, -1), [(("EU", "rejects"), ("B-ORG", "O")), (("BRUSSELS",), ("B-LOC",))]),
        (CONLL_U, (2, 4), [(("Vamos", "nos"), ("VERB", "PRON"))]),
        ("# NN\nof IN\n", (1, 2), [(("of",), ("IN",))]),
    ],
)
def test_conll_files(tmp_path, text, columns, sentences):
    file = tmp_path / "a.conll.gz"
    file.write_bytes(gzip.compress(text.encode("utf-16")))
    report = LoadReport()
    tagged = read_tagged_tokens(file, report, token_column=columns[0], tag_column=columns[1])
    assert [tuple(sentence) for sentence in tagged] == sentences
    assert (report.loaded, report.skipped) == (len(sentences), 0)


def test_a_broken_sentence_is_skipped_whole(tmp_path):
    file = tmp_path / "a.tsv"
    file.write_text("a\tX\nb\n\nc\tY\n")
    report = LoadReport()
    assert list(read_tagged_tokens(file, report)) == [(("c",), ("Y",))]
    assert str(report).endswith("1 × 1 column instead of 2: a.tsv:2")


def test_tagged_json_lines(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"tokens": ["a"], "tags": ["X"]}\n{"tokens": ["a"], "tags": []}\n[]\n')
    report = LoadReport()
    assert list(read_tagged_tokens(file, report)) == [(("a",), ("X",))]
    assert set(report.reasons) == {"not one tag per token", "not JSON with tokens and tags"}


@pytest.mark.parametrize("vocab", [300, 1 << 17])
def test_a_token_cache_is_what_was_written(tmp_path, vocab):
    rng = np.random.default_rng(0)
    rows = [
        {name: rng.integers(0, vocab, rng.integers(0, 9)).tolist() for name in ("source", "target")}
        for _ in range(50)
    ]
    cache = write_token_cache(tmp_path, iter(rows), vocab=vocab, key="mine")
    assert [{name: x.tolist() for name, x in row.items()} for row in cache] == rows
    assert cache.lengths("source").tolist() == [len(row["source"]) for row in rows]
    batch = collate(cache[:3], pad_id=7)
    assert batch["source"].dtype == torch.int64
    for row, ids, length in zip(batch["source"], rows, batch["source_lengths"], strict=False):
        assert row.tolist() == ids["source"] + [7] * (len(row) - length)
    assert read_cache_header(tmp_path)["key"] == "mine"


@pytest.mark.usefixtures("users_view")
def test_a_damaged_token_cache_is_refused(tmp_path):
    write_token_cache(tmp_path, [{"x": [1, 2, 3]}], vocab=9)
    with (tmp_path / "x.tokens").open("ab") as file:
        file.write(b"1")
    with pytest.raises(FileError, match="cut short"):
        TokenCache(tmp_path)

    def stopped():
        yield {"x": [1]}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_token_cache(tmp_path, stopped(), vocab=9)
    assert read_cache_header(tmp_path) is None  # never half a cache
