"""Tables of texts: CSV, TSV and JSON lines, in any Unicode encoding, gzipped or not."""

import csv
import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Literal, NamedTuple

from regard.errors import ConfigError, FileError, suggestion
from regard.files import DETECTION_BYTES, iter_lines, open_binary, parse_json

TableKind = Literal["csv", "tsv", "jsonl"]
DELIMITERS = {"tsv": "\t", "csv": ",;\t|"}  # those of a .csv are told apart by its first lines
SUFFIXES: dict[str, TableKind] = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl"}
SAMPLE_LINES = 20  # that decide the delimiter
KEY_LINES = 1000  # of JSON that are searched for keys: not every line has all of them
UTF16_MARKS = (BOM_UTF16_LE, BOM_UTF16_BE)
SURROGATE = re.compile("[\ud800-\udfff]").search
HALF_PAIR = "half of a surrogate pair"
CSV_REASONS = {  # by words of csv.Error
    "field limit": f"a cell of more than {csv.field_size_limit():,} characters",
    "new-line": "a \\r outside quotes",
}


class TableRow(NamedTuple):
    """The values of one row and its line number, or the error of that line."""

    line: int
    values: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class TableFormat:
    """How a table is written.

    `columns` are the names in its first line, or the keys of its first 1000 JSON objects; a
    table without a header has the numbers "1", "2", …
    """

    kind: TableKind
    columns: tuple[str, ...]
    delimiter: str = "\t"

    def find_columns(self, *names: Sequence[str]) -> list[str] | None:
        """For each set of known names the first column of that name; None if one is missing."""
        matches = [[x for x in self.columns if x.lower() in known] for known in names]
        return [columns[0] for columns in matches] if all(matches) else None


def table_kind(path: str | Path) -> TableKind | None:
    """The kind of table by the suffix, before a .gz; None for other files.

    A .txt or .tsv in UTF-16 with tabs is what Excel saves as Unicode text: a CSV with tabs.

    >>> table_kind("pairs.tsv.gz"), table_kind("pairs.txt")
    ('tsv', None)
    """
    suffix = Path(Path(path).name.lower().removesuffix(".gz")).suffix
    if suffix in (".txt", ".tsv") and Path(path).is_file():
        with open_binary(path) as opened:
            head = opened.read(DETECTION_BYTES)
        if head.startswith(UTF16_MARKS) and "\t" in head.decode("utf-16", "replace"):
            return "csv"
    return SUFFIXES.get(suffix)


def detect_table(path: str | Path, *, header: bool) -> TableFormat:
    """The kind, columns and delimiter of a table, from its suffix and first lines.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "a.csv"
    >>> _ = file.write_text("text;label\\ngood;1\\n")
    >>> detect_table(file, header=True)
    TableFormat(kind='csv', columns=('text', 'label'), delimiter=';')
    """
    kind = table_kind(path)
    if kind is None:
        raise FileError(f"{path}: needs to end in {', '.join(SUFFIXES)}, got {Path(path).name}")
    lines = []
    for line in iter_lines(path):
        start = line[: csv.field_size_limit()].decode(errors="replace")
        lines += [start + "\n"] if line.strip() else []
        if len(lines) == SAMPLE_LINES:
            break
    if not lines:
        raise FileError(f"{path}: needs rows, got an empty file")
    if kind == "jsonl":
        some = islice(filter(bytes.strip, iter_lines(path)), KEY_LINES)
        objects = (_json_object(line.decode(errors="replace")) or {} for line in some)
        return TableFormat(kind, tuple(dict.fromkeys(chain.from_iterable(objects))))
    tables = {sign: list(_sample(lines, kind, sign)) for sign in DELIMITERS[kind]}
    delimiter, rows = max(tables.items(), key=lambda item: _regularity(item[1]))
    if not rows:
        raise FileError(
            f"{path}: needs lines that end in \\n or \\r\\n, got \\r in the first; try mac2unix"
        )
    names = rows[0] if header else map(str, range(1, max(map(len, rows)) + 1))
    return TableFormat(kind, tuple(name.strip() for name in names), delimiter)


def _sample(lines: Sequence[str], kind: TableKind, delimiter: str) -> Iterator[list[str]]:
    """The rows of some lines, up to the first that cannot be parsed."""
    if kind == "tsv":
        yield from (line.removesuffix("\n").split(delimiter) for line in lines)
        return
    with suppress(csv.Error):
        yield from csv.reader(lines, delimiter=delimiter)


def _regularity(rows: Sequence[Sequence[str]]) -> tuple[bool, int]:
    """Whether every line has the same number of columns, two or more, and how many at most."""
    counts = {len(row) for row in rows if row}
    return len(counts) == 1 and max(counts) > 1, max(counts, default=0)


def read_table(
    path: str | Path, columns: Sequence[str], *, header: bool = True
) -> Iterator[TableRow]:
    """The values of the given columns, row by row; a bad row has an `error` instead.

    Args:
        path: .csv, .tsv or .jsonl, or one of them gzipped.
        columns: names of the header or keys of the JSON; numbers from "1" without a header.
        header: whether the first line of a .csv or .tsv names the columns.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "a.tsv"
    >>> _ = file.write_text("id\\ttext\\n7\\tseven\\n8\\n")
    >>> list(read_table(file, ["text"]))
    [TableRow(line=2, values=('seven',), error=''), TableRow(line=3, values=(), error='1 column')]
    """
    table = detect_table(path, header=header)
    if not header and table.kind != "jsonl":
        if not all(name.isdecimal() and int(name) for name in columns):
            raise ConfigError(f"columns: need numbers from 1 without a header, got {columns}")
        return _read_delimited(Path(path), table, [int(name) - 1 for name in columns], header)
    if missing := [name for name in columns if name not in table.columns]:
        known = ", ".join(table.columns[:SAMPLE_LINES])
        hint = suggestion(missing[0], table.columns)
        raise ConfigError(f"columns: need to be of {known} in {path}, got {missing[0]!r}{hint}")
    if table.kind == "jsonl":
        return _read_json_lines(Path(path), columns)
    indices = [table.columns.index(name) for name in columns]
    return _read_delimited(Path(path), table, indices, header)


def _read_json_lines(path: Path, columns: Sequence[str]) -> Iterator[TableRow]:
    for number, line in enumerate(iter_lines(path), 1):
        if not line.strip():
            continue
        try:
            data = _json_object(line.decode())
        except UnicodeDecodeError as error:
            yield TableRow(number, error=f"not UTF-8 ({error.reason})")
            continue
        if data is None:
            yield TableRow(number, error="not a JSON object")
        elif missing := [name for name in columns if data.get(name) is None]:
            yield TableRow(number, error=f"without {' and '.join(missing)}")
        else:
            values = tuple(str(data[name]) for name in columns)
            error = HALF_PAIR if has_surrogate(*values) else ""
            yield TableRow(number, () if error else values, error)


def has_surrogate(*texts: str) -> bool:
    """Whether a text has half of a surrogate pair, which JSON can write and UTF-8 cannot.

    >>> has_surrogate("a", "\\ud800"), has_surrogate("😀")
    (True, False)
    """
    return any(not text.isascii() and bool(SURROGATE(text)) for text in texts)


def _json_object(line: str) -> dict | None:
    try:
        data = parse_json(line)
    except ValueError:
        return None
    return data if isinstance(data, dict) else None


def _read_delimited(
    path: Path, table: TableFormat, indices: Sequence[int], header: bool
) -> Iterator[TableRow]:
    last = max(indices)
    for first, row, error, lines in _rows(path, table):
        if error:
            yield TableRow(first, error=error)
        elif header and first == 1 or not "".join(row).strip():
            continue
        elif len(row) <= last:
            inside = f" in {lines} lines, a quote is not closed" * (lines > 1)
            yield TableRow(first, error=f"{len(row)} column{'s' * (len(row) > 1)}{inside}")
        else:
            values = tuple([row[i] for i in indices])
            if has_surrogate(*values):  # bytes kept by surrogateescape
                yield TableRow(first, error="not UTF-8")
            else:
                yield TableRow(first, values)


def _rows(path: Path, table: TableFormat) -> Iterator[tuple[int, list[str], str, int]]:
    """The first line, the cells, the error and the number of lines of each row."""
    lines = (line.decode(errors="surrogateescape") for line in iter_lines(path))
    if table.kind == "tsv":  # no quotes: what csv.reader does, in less time
        yield from (
            (number, line.split(table.delimiter), "", 1) for number, line in enumerate(lines, 1)
        )
        return
    reader = csv.reader((f"{line}\n" for line in lines), delimiter=table.delimiter)
    while True:
        first = reader.line_num + 1
        try:
            row = next(reader)
            yield first, row, "", reader.line_num + 1 - first
        except StopIteration:
            return
        except csv.Error as error:
            known = (text for words, text in CSV_REASONS.items() if words in str(error))
            yield first, [], next(known, str(error)), 1
