"""Annotated text from files of the user: labelled texts and tagged tokens."""

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from regard.data.source import LoadReport
from regard.data.table import HALF_PAIR, has_surrogate, read_table, table_kind
from regard.errors import FileError
from regard.files import iter_lines, parse_json

CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")  # other than tab
DOCUMENT_START = "-DOCSTART-"  # CoNLL 2003 separates documents by such a line


class LabeledText(NamedTuple):
    """A text and its class."""

    text: str
    label: str


class TaggedTokens(NamedTuple):
    """The tokens of a sentence, and one tag per token."""

    tokens: tuple[str, ...]
    tags: tuple[str, ...]


def read_labeled_texts(
    path: str | Path,
    report: LoadReport,
    *,
    text: str = "text",
    label: str = "label",
    header: bool = True,
) -> Iterator[LabeledText]:
    """Labelled texts of a .csv, .tsv or .jsonl file; bad rows are counted in the report.

    Args:
        path: the file, gzipped or not.
        report: of loaded and skipped rows.
        text: column of the text, by name or number.
        label: column of the class.
        header: whether the first line names the columns.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "a.csv"
    >>> _ = file.write_text('text,label\\n"good, fast",yes\\nslow,\\n')
    >>> report = LoadReport()
    >>> list(read_labeled_texts(file, report))
    [LabeledText(text='good, fast', label='yes')]
    >>> print(report)
    loaded 1, skipped 1
      1 × an empty label: a.csv:3
    """
    name = Path(path).name
    for row in read_table(path, (text, label), header=header):
        values = [value.strip() for value in row.values]
        if row.error:
            report.skip(name, row.line, row.error)
        elif not all(values):
            report.skip(name, row.line, "an empty text" if not values[0] else "an empty label")
        else:
            report.loaded += 1
            yield LabeledText(*values)


def read_tagged_tokens(
    path: str | Path, report: LoadReport, *, token_column: int = 1, tag_column: int = -1
) -> Iterator[TaggedTokens]:
    """Sentences of a CoNLL-like file, or of JSON lines with `tokens` and `tags`.

    A CoNLL file has one token per line, columns separated by tabs or spaces, and an empty line
    after each sentence. Comments of CoNLL-U (`# …`), its multi-word lines (`1-2`) and the document
    lines of CoNLL 2003 are skipped.

    Args:
        path: the file, gzipped or not.
        report: of loaded and skipped sentences.
        token_column: number of the token's column, from 1.
        tag_column: number of the tag's column; -1 is the last.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "a.conll"
    >>> _ = file.write_text("Ada NNP B-PER\\nsleeps VBZ O\\n\\nYes UH O\\n")
    >>> [sentence.tags for sentence in read_tagged_tokens(file, LoadReport())]
    [('B-PER', 'O'), ('O',)]
    """
    if token_column < 1 or tag_column == 0:
        raise FileError(f"{path}: needs columns from 1, got {token_column} and {tag_column}")
    if table_kind(path) == "jsonl":
        return _read_json_lines(Path(path), report)
    return _read_conll(Path(path), report, token_column - 1, tag_column - (tag_column > 0))


def _read_json_lines(path: Path, report: LoadReport) -> Iterator[TaggedTokens]:
    for number, line in enumerate(iter_lines(path), 1):
        if not line.strip():
            continue
        try:
            data = parse_json(line.decode())
            tokens, tags = (tuple(map(str, data[name])) for name in ("tokens", "tags"))
        except (ValueError, KeyError, TypeError):
            report.skip(path.name, number, "not JSON with tokens and tags")
            continue
        if has_surrogate(*tokens, *tags):
            report.skip(path.name, number, HALF_PAIR)
            continue
        if len(tokens) != len(tags) or not tokens:
            reason = "no tokens" if not tokens else "not one tag per token"
            report.skip(path.name, number, reason)
        else:
            report.loaded += 1
            yield TaggedTokens(tokens, tags)


def _read_conll(
    path: Path, report: LoadReport, token_index: int, tag_index: int
) -> Iterator[TaggedTokens]:
    tokens, tags, error = list[str](), list[str](), ""
    for number, raw in enumerate(chain(iter_lines(path), [b""]), 1):
        line = raw.decode(errors="replace").rstrip()
        if not line:  # also after the last one
            if tokens and not error:
                report.loaded += 1
                yield TaggedTokens(tuple(tokens), tuple(tags))
            tokens, tags, error = [], [], ""
            continue
        columns = line.split("\t") if "\t" in line else line.split()
        if line.startswith("# ") or columns[0] == DOCUMENT_START or _is_multi_word(columns):
            continue
        if not error and (error := _column_error(columns, token_index, tag_index, raw)):
            report.skip(path.name, number, error)
        if not error:
            tokens.append(columns[token_index])
            tags.append(columns[tag_index])


def _is_multi_word(columns: list[str]) -> bool:
    """Lines of CoNLL-U for several words, `1-2`, or for none, `1.1`."""
    first, sign, last = columns[0].replace(".", "-").partition("-")
    return len(columns) == 10 and bool(sign) and first.isdigit() and last.isdigit()


def _column_error(columns: list[str], token_index: int, tag_index: int, raw: bytes) -> str:
    needed = max(token_index, tag_index, 1) + 1
    if len(columns) < needed:
        return f"{len(columns)} column{'s' * (len(columns) > 1)} instead of {needed}"
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        return f"not UTF-8 ({error.reason})"
    if CONTROL.search(raw.rstrip(b"\r")):
        return "a control character, as of a binary file"
    return "" if columns[token_index] and columns[tag_index] else "an empty token or tag"
