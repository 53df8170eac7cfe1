"""Text and JSON: reading in any Unicode encoding, writing in UTF-8."""

import codecs
import gzip
import json
import re
import tomllib
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from html import escape
from io import BufferedIOBase
from itertools import chain
from pathlib import Path
from typing import Any

from regard.errors import FileError
from regard.files.atomic import atomic_write

MAX_LINE_BYTES = 1 << 24
DETECTION_BYTES = 4096  # prefix searched for an encoding without a byte order mark
CHUNK_BYTES = 1 << 14  # bytes per read
GZIP_MAGIC = b"\x1f\x8b"
LONG_DOTTED_KEY = re.compile(r"""(?<![\w'"-])(?:[\w'"-]++\s*+\.\s*+){20}""")


def write_text(path: str | Path, text: str) -> Path:
    """Write a text file in UTF-8 atomically and return its path.

    >>> write_text("nowhere/at/all.html", "")
    Traceback (most recent call last):
        ...
    regard.errors.FileError: nowhere/at/all.html: cannot be written, No such file or directory
    """
    with atomic_write(path) as temporary:
        temporary.write_bytes(text.encode(errors="surrogateescape"))
    return Path(path)


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; any defect, also too deep nesting, raises ValueError.

    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
        ...
    ValueError: nested too deeply
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parse_toml(text: str, parse_float: Callable[[str], Any] = float) -> dict[str, Any]:
    """Parse TOML; any defect, also too deep nesting, raises ValueError.

    >>> parse_toml("steps = 3")
    {'steps': 3}
    """
    text = re.sub("\r\n?", "\n", text)
    if LONG_DOTTED_KEY.search(text):  # tomllib is quadratic in the number of parts
        raise ValueError("a name of more than 20 parts")
    try:
        return tomllib.loads(text, parse_float=parse_float)
    except RecursionError:
        raise ValueError("too many brackets inside brackets") from None


@contextmanager
def open_binary(file: str | Path) -> Iterator[BufferedIOBase]:
    """Open a file for reading bytes, unpacked if it is gzipped, or raise `FileError`.

    >>> with open_binary("nowhere.txt"):
    ...     pass
    Traceback (most recent call last):
        ...
    regard.errors.FileError: nowhere.txt: cannot be read, No such file or directory
    """
    try:
        opened = open(file, "rb")  # noqa: SIM115
    except OSError as error:
        raise FileError(f"{file}: cannot be read, {error.strerror or error}") from error
    with opened:
        if opened.peek(2)[:2] != GZIP_MAGIC:
            yield opened
            return
        try:
            with gzip.GzipFile(fileobj=opened) as unpacked:
                yield unpacked
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise FileError(f"{file}: needs a complete gzip file, got {error}") from error


def iter_lines(file: str | Path) -> Iterator[bytes]:
    """The lines of a text file as UTF-8, without line ends; see `iter_utf8_lines`.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "a.txt.gz"
    >>> _ = file.write_bytes(gzip.compress(b"one\\ntwo"))
    >>> list(iter_lines(file))
    [b'one', b'two']
    """
    with open_binary(file) as opened:
        for lines in iter_utf8_lines(iter_chunks(opened), file):
            yield from lines


def detect_encoding(head: bytes) -> str:
    """The Unicode encoding of a text, from its byte order mark or its zero bytes; else UTF-8.

    In UTF-16 and UTF-32 every ASCII character has a zero byte; UTF-8 text has none.

    >>> detect_encoding("Grüße".encode()), detect_encoding("Grüße".encode("utf-16-le"))
    ('utf-8', 'utf-16-le')
    """
    marks = [(codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF32_LE, "utf-32")]
    marks += [(codecs.BOM_UTF32_BE, "utf-32")]
    marks += [(codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16")]
    for mark, name in marks:
        if head.startswith(mark):
            return name
    if b"\0" not in head:
        return "utf-8"
    ascii_share: dict[str, float] = {}
    for name in ("utf-32-le", "utf-32-be", "utf-16-le", "utf-16-be"):
        text = codecs.getincrementaldecoder(name)("replace").decode(head)
        printable = sum(c.isprintable() or c in "\t\r\n" for c in text)
        if text and printable >= 0.95 * len(text) and "\ufffd" not in text:
            ascii_share[name] = sum(c.isascii() for c in text) / len(text)
    return max(ascii_share, key=lambda name: ascii_share[name], default="utf-8")


def read_text(
    file: str | Path, data: bytes | None = None, *, converter: str = "iconv -t UTF-8"
) -> str:
    """The text of a UTF-8, UTF-16 or UTF-32 file, without its byte order mark.

    With `data`, its content is decoded and `file` only appears in messages; `converter` is the
    command that the message suggests for other encodings.

    >>> read_text("standard input", "Grüße".encode("utf-16"))
    'Grüße'
    >>> read_text("a.txt", b"first\\nGr\\xfc\\xdfe")
    Traceback (most recent call last):
        ...
    regard.errors.FileError: a.txt: needs UTF-8, got byte 0xfc in line 2, byte 3; try iconv -t UTF-8
    """
    if data is None:
        with open_binary(file) as opened:
            data = opened.read()
    encoding = detect_encoding(data[:DETECTION_BYTES])
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line = before.decode(encoding, errors="replace").count("\n") + 1
        at = error.start - (before.rfind(b"\n") if encoding.startswith("utf-8") else -1)
        name = encoding.upper().removesuffix("-SIG")
        where = f"line {line}, byte {at}" if name == "UTF-8" else f"line {line} at byte {at - 1}"
        raise FileError(
            f"{file}: needs {name}, got byte {data[error.start]:#04x} in {where}; try {converter}"
        ) from error


def iter_utf8_lines(chunks: Iterable[bytes], name: str | Path = "text") -> Iterator[list[bytes]]:
    """Split a byte stream into UTF-8 lines without line ends; yields all lines complete so far.

    UTF-16 and UTF-32 are converted and a byte order mark is dropped. Undecodable bytes stay
    invalid, so that the caller that decodes a line can report which one it is.

    >>> list(iter_utf8_lines([b"\\xff\\xfea\\0\\n", b"\\0b\\0"]))
    [[b'a'], [b'b']]
    """
    pending: list[bytes] = []  # joined once: appending to a long line repeatedly is quadratic
    size = 0
    for chunk in _to_utf8(iter(chunks)):
        first, *others = chunk.split(b"\n")
        pending.append(first)
        size += len(first)
        if size > MAX_LINE_BYTES:
            raise FileError(
                f"{name}: needs lines of at most {MAX_LINE_BYTES} bytes, got a longer one"
            )
        if others:
            *complete, last = others
            yield [line.rstrip(b"\r") for line in (b"".join(pending), *complete)]
            pending, size = [last], len(last)
    if rest := b"".join(pending):
        yield [rest.rstrip(b"\r")]


def iter_chunks(opened: BufferedIOBase) -> Iterator[bytes]:
    """The bytes of a file or pipe as they arrive; a pipe yields what it has."""
    read = getattr(opened, "read1", opened.read)
    while chunk := read(CHUNK_BYTES):
        yield chunk


def _to_utf8(chunks: Iterator[bytes]) -> Iterator[bytes]:
    head = b""
    while len(head) < 4 and b"\n" not in head and (chunk := next(chunks, b"")):
        head += chunk
    encoding = detect_encoding(head[:DETECTION_BYTES])
    if encoding in ("utf-8", "utf-8-sig"):
        yield head.removeprefix(codecs.BOM_UTF8)
        yield from chunks
        return
    decoder = codecs.getincrementaldecoder(encoding)("surrogatepass")
    try:
        for chunk in chain([head], chunks):
            yield decoder.decode(chunk).encode("utf-8", "surrogatepass")
        yield decoder.decode(b"", final=True).encode("utf-8", "surrogatepass")
    except UnicodeDecodeError:  # ends within a character, or is not text at all
        yield b"\xff"


PAGE = Path(__file__).with_name("page.html")


def fill_page(template: Path, title: str, parts: Mapping[str, str]) -> str:
    """A page from a template, which has its style and then the body.

    `parts` are HTML by name: [[NAME]] in the template is replaced; so is [[TITLE]].

    >>> import tempfile
    >>> template = Path(tempfile.mkdtemp()) / "page.html"
    >>> _ = template.write_text("<style>\\n</style>\\n<p>[[TEXT]]</p>\\n")
    >>> "<title>A &lt; B</title>" in fill_page(template, "A < B", {"TEXT": "so it is"})
    True
    """
    style, body = read_text(template).removeprefix("<style>\n").split("</style>\n")
    page = read_text(PAGE).replace("[[STYLE]]", style.rstrip()).replace("[[BODY]]", body.rstrip())
    # one pass: a placeholder inside a part is not replaced
    known = {"TITLE": escape(title), **parts}
    return re.sub(r"\[\[([A-Z]+)\]\]", lambda mark: known[mark[1]], page)
