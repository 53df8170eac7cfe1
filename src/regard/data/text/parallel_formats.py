"""Readers of parallel text, one pair at a time: aligned files, tables, gettext .po and .mo."""

import os
import struct
from ast import literal_eval
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from regard.data.table import read_table
from regard.errors import FileError
from regard.files import iter_lines, open_binary

MISSING_LINE = "no such line"  # one of two aligned files is shorter


class CorpusRow(NamedTuple):
    """A pair and its line number, or the error of that line."""

    line: int
    source: str = ""
    target: str = ""
    error: str = ""


def read_aligned(source: Path, target: Path) -> Iterator[CorpusRow]:
    """Two line-aligned files."""
    for number, (a, b) in enumerate(zip_longest(iter_lines(source), iter_lines(target)), 1):
        if a is None or b is None:
            shorter = source if a is None else target
            yield CorpusRow(number, error=f"{MISSING_LINE} in {shorter.name}")
        else:
            yield _row(number, a, b)


def read_pairs(path: Path, columns: Sequence[str], *, header: bool) -> Iterator[CorpusRow]:
    """Two columns of a table; see `regard.data.table.read_table`."""
    for line, values, error in read_table(path, columns, header=header):
        source, target = values or ("", "")
        yield CorpusRow(line, source, target, error)


def _row(number: int, source: bytes, target: bytes) -> CorpusRow:
    try:
        return CorpusRow(number, source.decode(), target.decode())
    except UnicodeDecodeError as error:
        return CorpusRow(number, error=f"not UTF-8 ({error.reason})")


def read_po(path: Path) -> Iterator[CorpusRow]:
    """Messages of a gettext catalog; singular and first plural form of a message with plurals."""
    entry: dict[str, list[str]] = {}
    first, fuzzy, is_valid, name = 0, False, True, ""
    for number, raw in enumerate(_po(path), 1):
        line = raw.decode(errors="replace").strip()
        if not line or (line.startswith(("msgid ", "msgctxt ", "#")) and "msgstr" in _stems(entry)):
            if is_valid:
                yield from _message({key: "".join(x) for key, x in entry.items()}, first, fuzzy)
            entry, first, fuzzy, is_valid, name = {}, 0, False, True, ""
        if line.startswith("#"):
            fuzzy |= line.startswith("#,") and "fuzzy" in line
            continue
        if error := _row(number, raw, b"").error:
            yield CorpusRow(number, error=error)
            is_valid = False  # the message is reported by this line
        if line.startswith("msg"):
            name, _, line = line.partition(" ")
            first = number if name == "msgid" else first
            entry[name] = []
        if not line:
            continue
        if not name or (text := unquote_po(line)) is None:
            yield CorpusRow(number, error="neither a keyword nor a quoted text")
        else:
            entry[name].append(text)


def _po(file: Path) -> Iterator[bytes]:
    yield from iter_lines(file)
    yield b""  # ends the last message


def _stems(entry: dict[str, list[str]]) -> set[str]:
    return {name.partition("[")[0] for name in entry}


def unquote_po(line: str) -> str | None:
    """Text of a quoted .po line; None if it is not quoted."""
    if len(line) < 2 or line[0] != '"' or line[-1] != '"':
        return None
    try:
        return str(literal_eval(line))  # C escapes are Python escapes
    except (SyntaxError, ValueError):
        return None


def _message(entry: dict[str, str], line: int, fuzzy: bool) -> Iterator[CorpusRow]:
    if "msgid" not in entry or not entry["msgid"]:  # a comment, or the header
        return
    if fuzzy:
        yield CorpusRow(line, error="marked fuzzy")
    elif "msgid_plural" in entry:
        yield CorpusRow(line, entry["msgid"], entry.get("msgstr[0]", ""))
        if "msgstr[1]" in entry:
            yield CorpusRow(line, entry["msgid_plural"], entry["msgstr[1]"])
    else:
        yield CorpusRow(line, entry["msgid"], entry.get("msgstr", ""))


def read_mo(path: Path) -> Iterator[CorpusRow]:
    """Messages of a compiled catalog; the line is the number of the message."""
    with open_binary(path) as opened:
        head = opened.read(20)
        order = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}.get(head[:4])
        if order is None or len(head) < 20:
            raise FileError(
                f"{path}: needs to be a compiled catalog, got {head[:4]!r} at its start"
            )
        count, ids, strings = struct.unpack(f"{order}8x3I", head)
        for number in range(count):
            try:
                a, b = (_string(opened, table + 8 * number, order) for table in (ids, strings))
            except (struct.error, OSError):
                yield CorpusRow(number + 1, error="cut short")
                return
            if a:  # the empty msgid is the header
                source = a.rpartition(b"\x04")[2].split(b"\0")
                targets = b.split(b"\0")
                for text, translation in zip(source, targets, strict=False):
                    yield _row(number + 1, text, translation)


def _string(opened, at: int, order: str) -> bytes:
    opened.seek(at)
    size, start = struct.unpack(f"{order}2I", opened.read(8))
    if start + size > os.fstat(opened.fileno()).st_size:  # a header may declare 4 GB
        raise OSError("cut short")
    opened.seek(start)
    return opened.read(size)
