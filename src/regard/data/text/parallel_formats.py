"""Readers of parallel text, one pair at a time: aligned files, tables, gettext .mo, TMX."""

import codecs
import os
import re
import struct
from collections.abc import Iterator
from io import BufferedIOBase
from itertools import zip_longest
from pathlib import Path
from typing import NoReturn
from xml.parsers import expat

from regard.data.table import TableRow
from regard.errors import FileError
from regard.files import (
    CHUNK_BYTES,
    DETECTION_BYTES,
    detect_encoding,
    iter_chunks,
    iter_lines,
    open_binary,
)

MISSING_LINE = "no such line"  # one of two aligned files is shorter


def read_aligned(source: Path, target: Path) -> Iterator[TableRow]:
    """Two line-aligned files."""
    for number, (a, b) in enumerate(zip_longest(iter_lines(source), iter_lines(target)), 1):
        if a is None or b is None:
            shorter = source if a is None else target
            yield TableRow(number, error=f"{MISSING_LINE} in {shorter.name}")
        else:
            yield _row(number, a, b)


def _row(number: int, source: bytes, target: bytes) -> TableRow:
    try:
        return TableRow(number, (source.decode(), target.decode()))
    except UnicodeDecodeError as error:
        return TableRow(number, error=f"not UTF-8 ({error.reason})")


def read_mo(path: Path) -> Iterator[TableRow]:
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
                yield TableRow(number + 1, error="cut short")
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


MAX_UNIT_SIZE = 1 << 20  # characters of a unit, and bytes of one tag or comment
MAX_DEPTH = 100  # nested elements
MARKUP_ELEMENTS = {"bpt", "ept", "it", "ph", "ut"}  # inline elements whose content is markup
_DECLARED = re.compile(r"""<\?xml[^>]*?\sencoding\s*=\s*["']([^"']*)""")


def read_tmx(path: Path, source_language: str, target_language: str) -> Iterator[TableRow]:
    """Units of a translation memory that have both languages, with the line they start on.

    An exact language match is preferred to a regional one: `de`, then `de-AT`. Text of inline
    elements is included (`<hi>`) unless it is markup (`<ph>`). A DOCTYPE that names an external
    DTD is accepted and never loaded; one with inline declarations, such as entities, is refused.
    """
    units = _Units(path, source_language, target_language)
    with open_binary(path) as opened:
        parsed = 0
        try:
            for chunk in _in_utf8(opened, path):
                for first in range(0, len(chunk), CHUNK_BYTES):
                    part = chunk[first : first + CHUNK_BYTES]
                    units.parser.Parse(part, False)
                    parsed += len(part)
                    if parsed - units.parser.CurrentByteIndex > MAX_UNIT_SIZE:
                        # expat rescans an unfinished token with every chunk: quadratic time
                        units.stop(f"a tag or comment of more than {MAX_UNIT_SIZE} bytes")
                    yield from units.pop_rows()
            units.parser.Parse(b"", True)
        except (expat.ExpatError, UnicodeDecodeError, _Stop) as error:
            line, reason = units.parser.CurrentLineNumber, f"the rest is unread ({error})"
            units.rows.append(TableRow(line, error=f"broken XML, {reason}"))
        yield from units.pop_rows()


def _in_utf8(opened: BufferedIOBase, file: Path) -> Iterator[bytes]:
    """The document re-encoded as UTF-8; expat supports only four encodings."""
    head = opened.read(DETECTION_BYTES)
    encoding = detect_encoding(head)
    if encoding == "utf-8" and (match := _DECLARED.match(head.decode("latin-1"))):
        declared = match[1]
        # an ASCII-readable declaration cannot be UTF-16
        encoding = "utf-8" if declared.lower().startswith(("utf-16", "utf-32")) else declared
    try:
        decoder = codecs.getincrementaldecoder(encoding)()
        decoder.decode(b"")
        "".encode(encoding)  # refuses codecs that are not text encodings, such as zlib
    except (LookupError, ValueError) as error:
        raise FileError(
            f"{file}: needs a known encoding, got {encoding!r}; try iconv -t UTF-8"
        ) from error
    yield decoder.decode(head).encode()
    for chunk in iter_chunks(opened):
        yield decoder.decode(chunk).encode()
    yield decoder.decode(b"", final=True).encode()


class _Stop(Exception):  # noqa: N818
    """Stops parsing, with the reason."""


class _Units:
    """Collects the texts of two languages between <tu> and </tu>; holds one unit at a time."""

    def __init__(self, file: Path, source: str, target: str):
        self.file, self.rows = file, list[TableRow]()
        self.languages = [_tag(source), _tag(target)]
        self.line, self.open, self.language, self.error = 0, list[str](), "", ""
        self.inside: dict[str, list[str]] = {}
        self.segment: list[str] | None = None
        self.size = 0
        self.parser = expat.ParserCreate("utf-8")
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        self.parser.StartDoctypeDeclHandler = self._doctype
        self.parser.SkippedEntityHandler = self._skipped

    def pop_rows(self) -> list[TableRow]:
        rows, self.rows = self.rows, []
        return rows

    def stop(self, reason: str) -> NoReturn:
        raise _Stop(f"{reason}: line {self.parser.CurrentLineNumber}")

    def _doctype(self, name: str, system: str | None, public: str | None, inline: int) -> None:
        if inline:
            raise FileError(
                f"{self.file}: needs a DOCTYPE without inline declarations, got one for "
                f"{name!r} in line {self.parser.CurrentLineNumber}, which may define entities that "
                "grow without bound; try removing what is between [ and ]"
            )

    def _skipped(self, name: str, parameter: int) -> None:
        if not parameter:
            self.error = self.error or f"an unknown entity, &{name};"

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if len(self.open) >= MAX_DEPTH:
            self.stop(f"more than {MAX_DEPTH} nested elements")
        if name == "tu" and "tu" in self.open:
            self.error = self.error or "nested units"
        elif name == "tu":
            self.line, self.size = self.parser.CurrentLineNumber, 0
            self.inside, self.error = {}, ""
        elif name == "tuv":
            self.language = _tag(attributes.get("xml:lang") or attributes.get("lang") or "")
        elif name == "seg" and any(f"{self.language}-".startswith(f"{x}-") for x in self.languages):
            if self.language in self.inside:
                self.error = self.error or f"two texts in {self.language}"
            self.segment = self.inside.setdefault(self.language, [])
        self.open.append(name)

    def _text(self, text: str) -> None:
        if self.segment is None or not MARKUP_ELEMENTS.isdisjoint(self.open):
            return
        self.size += len(text)
        if self.size > MAX_UNIT_SIZE:
            self.error = self.error or f"longer than {MAX_UNIT_SIZE} characters"
        else:
            self.segment.append(text)  # joined once: repeated += is quadratic

    def _end(self, name: str) -> None:
        self.open.pop()
        if name == "seg":
            self.segment = None
        elif name == "tuv":
            self.language = ""
        elif name == "tu" and "tu" not in self.open:
            self.rows.append(self._row())
            self.inside = {}

    def _row(self) -> TableRow:
        texts = [self._in(language) for language in self.languages]
        missing = [w for w, text in zip(self.languages, texts, strict=True) if text is None]
        if self.error or missing:
            return TableRow(self.line, error=self.error or f"no text in {' and '.join(missing)}")
        return TableRow(self.line, tuple(text or "" for text in texts))

    def _in(self, language: str) -> str | None:
        """Text in a language, or else in one of its regional variants: de-AT for de."""
        regions = (given for given in self.inside if given.startswith(f"{language}-"))
        given = language if language in self.inside else next(regions, None)
        return None if given is None else "".join(self.inside[given])


def _tag(language: str) -> str:
    return language.strip().lower().replace("_", "-")
