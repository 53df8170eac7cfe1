"""Reader of TMX translation memories (LISA, version 1.4), one unit at a time."""

import codecs
import re
from collections.abc import Iterator
from io import BufferedIOBase
from pathlib import Path
from typing import NoReturn
from xml.parsers import expat

from regard.data.text.parallel_formats import CorpusRow
from regard.errors import FileError
from regard.files import CHUNK_BYTES, DETECTION_BYTES, detect_encoding, iter_chunks, open_binary

MAX_UNIT_SIZE = 1 << 20  # characters of a unit, and bytes of one tag or comment
MAX_DEPTH = 100  # nested elements
MARKUP_ELEMENTS = {"bpt", "ept", "it", "ph", "ut"}  # inline elements whose content is markup
_DECLARED = re.compile(r"""<\?xml[^>]*?\sencoding\s*=\s*["']([^"']*)""")


def read_tmx(path: Path, source_language: str, target_language: str) -> Iterator[CorpusRow]:
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
            units.rows.append(CorpusRow(line, error=f"broken XML, {reason}"))
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
        self.file, self.rows = file, list[CorpusRow]()
        self.wanted = [_tag(source), _tag(target)]
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

    def pop_rows(self) -> list[CorpusRow]:
        rows, self.rows = self.rows, []
        return rows

    def stop(self, reason: str) -> NoReturn:
        raise _Stop(f"{reason}: line {self.parser.CurrentLineNumber}")

    def _doctype(self, name: str, system: str | None, public: str | None, own: int) -> None:
        if own:
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
        elif name == "seg" and any(f"{self.language}-".startswith(f"{x}-") for x in self.wanted):
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

    def _row(self) -> CorpusRow:
        texts = [self._in(language) for language in self.wanted]
        missing = [w for w, text in zip(self.wanted, texts, strict=True) if text is None]
        if self.error or missing:
            return CorpusRow(self.line, error=self.error or f"no text in {' and '.join(missing)}")
        return CorpusRow(self.line, texts[0] or "", texts[1] or "")

    def _in(self, language: str) -> str | None:
        """Text in a language, or else in one of its regional variants: de-AT for de."""
        regions = (given for given in self.inside if given.startswith(f"{language}-"))
        given = language if language in self.inside else next(regions, None)
        return None if given is None else "".join(self.inside[given])


def _tag(language: str) -> str:
    return language.strip().lower().replace("_", "-")
