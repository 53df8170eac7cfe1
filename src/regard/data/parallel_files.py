"""Files of parallel text, read a pair at a time: two files, TSV, gettext .po and .mo, TMX."""

import struct
from ast import literal_eval
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple
from xml.parsers import expat

from regard.errors import FileError

CHUNK = 1 << 16  # bytes of XML at a time


class Row(NamedTuple):
    """A pair and its line; or why there is none."""

    line: int
    source: str = ""
    target: str = ""
    wrong: str = ""


def two_files(source: Path, target: Path) -> Iterator[Row]:
    """Line n of one file is line n of the other."""
    for number, (a, b) in enumerate(zip_longest(_lines(source), _lines(target)), 1):
        if a is None or b is None:
            yield Row(number, wrong=f"no such line in {(source if a is None else target).name}")
        else:
            yield _row(number, a, b)


def tsv(file: Path) -> Iterator[Row]:
    """The first two columns; others are notes."""
    for number, line in enumerate(_lines(file), 1):
        columns = line.split(b"\t")
        if len(columns) < 2:
            yield Row(number, wrong="no tab" if line.strip() else "an empty side")
        else:
            yield _row(number, columns[0], columns[1])


def _lines(file: Path) -> Iterator[bytes]:
    with file.open("rb") as opened:
        for number, line in enumerate(opened):
            yield (line.removeprefix(b"\xef\xbb\xbf") if not number else line).rstrip(b"\r\n")


def _row(number: int, source: bytes, target: bytes) -> Row:
    try:
        return Row(number, source.decode(), target.decode())
    except UnicodeDecodeError as error:
        return Row(number, wrong=f"not UTF-8 ({error.reason})")


def po(file: Path) -> Iterator[Row]:
    """The messages of a gettext catalog; of one with plurals, its singular and first plural."""
    entry: dict[str, str] = {}
    first, fuzzy, name = 0, False, ""
    for number, raw in enumerate(_po(file), 1):
        line = raw.decode(errors="replace").strip()
        if not line or (line.startswith(("msgid ", "msgctxt ", "#")) and "msgstr" in _stems(entry)):
            yield from _message(entry, first, fuzzy)
            entry, first, fuzzy, name = {}, 0, False, ""
        if line.startswith("#"):
            fuzzy |= line.startswith("#,") and "fuzzy" in line
            continue
        if line.startswith("msg"):
            name, _, line = line.partition(" ")
            first = number if name == "msgid" else first
            entry[name] = ""
        if not line:
            continue
        if not name or (text := unquoted(line)) is None:
            yield Row(number, wrong="neither a keyword nor a quoted text")
        else:
            entry[name] += text


def _po(file: Path) -> Iterator[bytes]:
    yield from _lines(file)
    yield b""  # the last message may have no empty line after it


def _stems(entry: dict[str, str]) -> set[str]:
    return {name.partition("[")[0] for name in entry}


def unquoted(line: str) -> str | None:
    if len(line) < 2 or line[0] != '"' or line[-1] != '"':
        return None
    try:
        return str(literal_eval(line))  # the escapes of C, which are Python's
    except (SyntaxError, ValueError):
        return None


def _message(entry: dict[str, str], line: int, fuzzy: bool) -> Iterator[Row]:
    if "msgid" not in entry or not entry["msgid"]:  # a comment, or the header
        return
    if fuzzy:
        yield Row(line, wrong="marked fuzzy")
    elif "msgid_plural" in entry:
        yield Row(line, entry["msgid"], entry.get("msgstr[0]", ""))
        if "msgstr[1]" in entry:
            yield Row(line, entry["msgid_plural"], entry["msgstr[1]"])
    else:
        yield Row(line, entry["msgid"], entry.get("msgstr", ""))


def mo(file: Path) -> Iterator[Row]:
    """The messages of a compiled catalog, which has numbers instead of lines."""
    with file.open("rb") as opened:
        head = opened.read(20)
        order = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}.get(head[:4])
        if order is None or len(head) < 20:
            raise FileError(
                f"{file}: needs to be a compiled catalog, got {head[:4]!r} at its start"
            )
        count, ids, strings = struct.unpack(f"{order}8x3I", head)
        for number in range(count):
            try:
                a, b = (_string(opened, table + 8 * number, order) for table in (ids, strings))
            except (struct.error, OSError):
                yield Row(number + 1, wrong="cut short")
                return
            if a:  # the empty one is the header
                source = a.rpartition(b"\x04")[2].split(b"\0")
                targets = b.split(b"\0")
                for one, other in zip(source, targets, strict=False):
                    yield _row(number + 1, one, other)


def _string(opened, at: int, order: str) -> bytes:
    opened.seek(at)
    size, place = struct.unpack(f"{order}2I", opened.read(8))
    opened.seek(place)
    text = opened.read(size)
    if len(text) < size:
        raise OSError("cut short")
    return text


def tmx(file: Path, source: str, target: str) -> Iterator[Row]:
    """The units of a translation memory that have both languages."""
    reader = _Units(source.lower(), target.lower())
    with file.open("rb") as opened:
        while True:
            chunk = opened.read(CHUNK)
            try:
                reader.parser.Parse(chunk, not chunk)
            except expat.ExpatError as error:
                yield from reader.taken()
                yield Row(error.lineno, wrong=f"broken XML, the rest is unread ({error})")
                return
            yield from reader.taken()
            if not chunk:
                return


class _Units:
    """Collects what is between <tu> and </tu>, by language, with its line."""

    def __init__(self, source: str, target: str):
        self.wanted, self.rows = (source, target), []
        self.line, self.language, self.inside, self.depth = 0, "", {}, 0
        self.parser = expat.ParserCreate()
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text

    def taken(self) -> list[Row]:
        rows, self.rows = self.rows, []
        return rows

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if name == "tu":
            self.line, self.inside = self.parser.CurrentLineNumber, {}
        elif name == "tuv":
            given = attributes.get("xml:lang") or attributes.get("lang") or ""
            self.language = given.lower().replace("_", "-")
        elif name == "seg":
            self.depth, self.inside[self.language] = 1, ""

    def _text(self, text: str) -> None:
        if self.depth:
            self.inside[self.language] += text

    def _end(self, name: str) -> None:
        if name == "seg":
            self.depth = 0
        elif name == "tu":
            found = [self._in(language) for language in self.wanted]
            missing = [w for w, text in zip(self.wanted, found, strict=True) if text is None]
            if missing:
                self.rows.append(Row(self.line, wrong=f"no text in {' and '.join(missing)}"))
            else:
                self.rows.append(Row(self.line, found[0] or "", found[1] or ""))

    def _in(self, language: str) -> str | None:
        """The text in a language, or in one of its regions: de-AT is de."""
        for given, text in self.inside.items():
            if given == language or given.startswith(f"{language}-"):
                return text
        return None
