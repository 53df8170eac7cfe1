"""TMX, the XML of translation memories (LISA, version 1.4), read one unit at a time."""

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
MAX_DEPTH = 100  # elements within each other
MARKUP_ELEMENTS = {
    "bpt",
    "ept",
    "it",
    "ph",
    "ut",
}  # inline elements that hold markup, which is no text
_DECLARED = re.compile(r"""<\?xml[^>]*?\sencoding\s*=\s*["']([^"']*)""")


def read_tmx(path: Path, source_language: str, target_language: str) -> Iterator[CorpusRow]:
    """The units of a translation memory that have both languages, with the line they begin in.

    Of a unit's languages an exact match is preferred to a regional one: `de`, then `de-AT`. Text
    in inline elements counts where it is text (`<hi>`) and not where it is markup (`<ph>`). A
    DOCTYPE that names an external DTD is accepted and never loaded; one with declarations of its
    own, such as entities, is refused.
    """
    units = _Units(path, source_language, target_language)
    with open_binary(path) as opened:
        given = 0
        try:
            for piece in _in_utf8(opened, path):
                for first in range(0, len(piece), CHUNK_BYTES):
                    some = piece[first : first + CHUNK_BYTES]
                    units.parser.Parse(some, False)
                    given += len(some)
                    if given - units.parser.CurrentByteIndex > MAX_UNIT_SIZE:
                        # expat reads an unfinished token again for each piece: quadratic
                        units.stop(f"a tag or comment of more than {MAX_UNIT_SIZE} bytes")
                    yield from units.taken()
            units.parser.Parse(b"", True)
        except (expat.ExpatError, UnicodeDecodeError, _Stop) as error:
            yield from units.taken()
            line = units.parser.CurrentLineNumber
            yield CorpusRow(line, error=f"broken XML, the rest is unread ({error})")
            return
        yield from units.taken()


def _in_utf8(opened: BufferedIOBase, file: Path) -> Iterator[bytes]:
    """The document in UTF-8: expat itself knows four encodings, and Python all that are in use."""
    head = opened.read(DETECTION_BYTES)
    encoding = detect_encoding(head)
    if encoding == "utf-8" and (found := _DECLARED.match(head.decode("latin-1"))):
        declared = found[1]
        # what is declared in bytes of ASCII is not UTF-16, whatever it says
        encoding = "utf-8" if declared.lower().startswith(("utf-16", "utf-32")) else declared
    try:
        decoder = codecs.getincrementaldecoder(encoding)()
        decoder.decode(b"")
        "".encode(encoding)  # refuses codecs that are no text encodings, such as zlib
    except (LookupError, ValueError) as error:
        raise FileError(
            f"{file}: needs an encoding that is known, got {encoding!r}; try iconv -t UTF-8"
        ) from error
    yield decoder.decode(head).encode()
    for piece in iter_chunks(opened):
        yield decoder.decode(piece).encode()
    yield decoder.decode(b"", final=True).encode()


class _Stop(Exception):  # noqa: N818
    """A document that is not read further, for a reason that is given."""


class _Units:
    """Collects the text of the two languages between <tu> and </tu>; nothing else is held."""

    def __init__(self, file: Path, source: str, target: str):
        self.file, self.rows = file, list[CorpusRow]()
        self.wanted = [_tag(source), _tag(target)]
        self.line, self.open, self.language, self.wrong = 0, list[str](), "", ""
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

    def taken(self) -> list[CorpusRow]:
        rows, self.rows = self.rows, []
        return rows

    def stop(self, reason: str) -> NoReturn:
        raise _Stop(f"{reason}: line {self.parser.CurrentLineNumber}")

    def _doctype(self, name: str, system: str | None, public: str | None, own: int) -> None:
        if own:
            raise FileError(
                f"{self.file}: needs a DOCTYPE without declarations of its own, got one for "
                f"{name!r} in line {self.parser.CurrentLineNumber}, which may define entities that "
                "grow without bound; try removing what is between [ and ]"
            )

    def _skipped(self, name: str, parameter: int) -> None:
        if not parameter:
            self.wrong = self.wrong or f"an entity that is not known, &{name};"

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if len(self.open) >= MAX_DEPTH:
            self.stop(f"more than {MAX_DEPTH} elements within each other")
        if name == "tu" and "tu" in self.open:
            self.wrong = self.wrong or "a unit within a unit"
        elif name == "tu":
            self.line, self.inside, self.wrong = self.parser.CurrentLineNumber, {}, ""
            self.size = 0
        elif name == "tuv":
            self.language = _tag(attributes.get("xml:lang") or attributes.get("lang") or "")
        elif name == "seg" and self._is_wanted(self.language):
            if self.language in self.inside:
                self.wrong = self.wrong or f"two texts in {self.language}"
            self.segment = self.inside.setdefault(self.language, [])
        self.open.append(name)

    def _text(self, text: str) -> None:
        if self.segment is None or not MARKUP_ELEMENTS.isdisjoint(self.open):
            return
        self.size += len(text)
        if self.size > MAX_UNIT_SIZE:
            self.wrong = self.wrong or f"longer than {MAX_UNIT_SIZE} characters"
        else:
            self.segment.append(text)  # joined once: adding to a string again is quadratic

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
        found = [self._in(language) for language in self.wanted]
        missing = [w for w, text in zip(self.wanted, found, strict=True) if text is None]
        if self.wrong or missing:
            return CorpusRow(self.line, error=self.wrong or f"no text in {' and '.join(missing)}")
        return CorpusRow(self.line, found[0] or "", found[1] or "")

    def _is_wanted(self, given: str) -> bool:
        return any(given == x or given.startswith(f"{x}-") for x in self.wanted)

    def _in(self, language: str) -> str | None:
        """The text in a language, or else in one of its regions: de-AT is de."""
        regions = [given for given in self.inside if given.startswith(f"{language}-")]
        for given in [language, *regions]:
            if given in self.inside:
                return "".join(self.inside[given])
        return None


def _tag(language: str) -> str:
    return language.strip().lower().replace("_", "-")
