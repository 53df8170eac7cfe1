"""The work of `regard translate`: what comes in, what is made of it, and where it goes."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import Any, NamedTuple, TextIO, cast

from regard.cli.progress import progress
from regard.data import Catalog, Pair
from regard.errors import ConfigError, FileError
from regard.files import (
    descriptor,
    is_stream,
    keep_partial,
    pieces_of,
    reading,
    utf8_lines,
    writing,
)
from regard.look import align, draw_alignment, sharing
from regard.train import Interpreter, Translation

KINDS = ("lines", "tsv", "po")
TOGETHER = 512  # lines; those of like length make batches, and what is done is kept if it stops
WARNINGS = 5  # of low confidence that a file gets in full; the rest is counted


class Asked(NamedTuple):
    """What is to be translated (texts, or a file: None is standard input), and where it goes."""

    texts: list[str]
    file: Path | None
    kind: str
    out: Path | None

    @staticmethod
    def of(given: list[str], kind: str | None, out: Path | None) -> "Asked":
        """Sort out what was typed."""
        if kind is not None and kind not in KINDS:
            raise ConfigError(f"format: needs one of {', '.join(KINDS)}, got {kind!r}")
        if not given and sys.stdin.isatty():
            raise ConfigError("text: needs a text, a file or - for standard input, got none")
        if out is not None and not out.resolve().parent.is_dir():
            raise FileError(f"out: needs a folder that exists, got {out.parent}; try another place")
        if out is not None and descriptor(out) == 1:
            out = None  # /dev/stdout
        if given in ([], ["-"]):
            return Asked([], None, kind or "lines", out)
        _check(given)
        file = Path(given[0])
        if len(given) == 1 and _is_file(file):
            named = file.suffix.removeprefix(".")
            return Asked([], file, kind or (named if named in KINDS else "lines"), out)
        if len(given) == 1 and (file.suffix in (".po", ".tsv", ".txt") or kind is not None):
            raise FileError(f"{file}: needs to be a file, got nothing there")
        return Asked(given, None, "texts", out)


class Job:
    """One translation of all that was asked.

    `problems` counts what could not be done, `unsure` the answers of low confidence among `given`.
    """

    def __init__(
        self,
        asked: Asked,
        interpreter: Interpreter,
        *,
        align: bool = False,
        picture: Path | None = None,
    ):
        self.asked, self.interpreter, self.problems = asked, interpreter, 0
        self.unsure, self.given = 0, 0
        self.align, self.picture = align, picture
        several = len(asked.texts) != 1 or len(interpreter.to) != 1
        if picture is not None and several:
            raise ConfigError("picture: needs one text and one language, got others; try fewer")
        if asked.kind in ("tsv", "po") and (align or interpreter.best > 1):
            raise ConfigError(f"format: needs lines for --align and --n-best, got {asked.kind}")
        if asked.kind == "po" and len(interpreter.to) > 1:
            raise ConfigError(
                f"to: needs one language for a .po, got {' '.join(interpreter.to)}; "
                "try one file a language"
            )

    def run(self) -> None:
        """Do it; what is done is written before the next is begun."""
        if self.asked.kind == "po":
            self._catalog()
            return
        with _source(self.asked) as source, _place(self.asked) as place:
            if self.asked.kind == "texts":
                self._texts(place)
                return
            file, number = self.asked.file, 0
            size = file.stat().st_size if file is not None and file.is_file() else None
            with progress("translating", size, prints=place is sys.stdout) as advance:
                for some in utf8_lines(pieces_of(source), file or "standard input"):
                    for lines in _groups(some):
                        self._some(lines, number, place)
                        number += len(lines)
                        advance(sum(map(len, lines)) + len(lines))

    def tell_cost(self) -> None:
        """What reading once has saved, next to the formula, for texts of the mean length."""
        texts, read, written = self.interpreter.work
        if not texts:
            return
        count = len(self.interpreter.to)
        source, target = -(-read // texts), -(-written // (texts * count))
        say(f"a text: M = {source} tokens read, N = {target} written in each language (means)")
        say(str(sharing(self.interpreter.model, source, target, count)))

    def _texts(self, place: TextIO) -> None:
        texts = self.asked.texts
        for n, found in enumerate(self.interpreter.answers(texts)):
            for to, answers in zip(self.interpreter.to, found, strict=True):
                self._check(answers, f"text {n + 1}", to, repr(_short(texts[n])))
                if self.interpreter.best > 1:
                    self._write_best(place, n, to, answers)
                else:
                    named = f"{to}\t" if len(self.interpreter.to) > 1 else ""
                    place.write(f"{named}{_column(answers[0].text)}\n")
                self._tell_links(place, texts[n], to, answers[0].text)

    def _some(self, lines: list[bytes], before: int, place: TextIO) -> None:
        """Some lines: each becomes one, in order, whatever is wrong with it."""
        texts = [self._text(line, before + n + 1) for n, line in enumerate(lines)]
        ready = [n for n, text in enumerate(texts) if text.strip()]
        found = dict(zip(ready, self.interpreter.answers([texts[n] for n in ready]), strict=True))
        for n, line in enumerate(lines):
            answers = found.get(n, [[] for _ in self.interpreter.to])
            for to, some in zip(self.interpreter.to, answers, strict=True):
                self._check(some, f"line {before + n + 1}", to, f"line {before + n + 1}")
                if self.interpreter.best > 1:
                    self._write_best(place, before + n, to, some)
            if self.interpreter.best == 1:
                columns = [_column(some[0].text) if some else "" for some in answers]
                kept = [line.decode(errors="surrogateescape")] if self.asked.kind == "tsv" else []
                place.write("\t".join([*kept, *columns]) + "\n")
            for to, some in zip(self.interpreter.to, answers, strict=True):
                if some:
                    self._tell_links(place, texts[n], to, some[0].text)
        place.flush()

    def _text(self, line: bytes, number: int) -> str:
        """What a line asks for; nothing, said, where it cannot be read or translated."""
        try:
            text = (line.partition(b"\t")[0] if self.asked.kind == "tsv" else line).decode()
        except UnicodeDecodeError as error:
            got = f"byte {line[error.start]:#04x} at byte {error.start + 1}"
            self._problem(f"line {number}: it needs UTF-8, got {got}; try iconv -t UTF-8")
            return ""
        if "\0" in text:
            self._problem(f"line {number}: it needs text, got a zero byte")
            return ""
        wrong = self.interpreter.wrong(text) if text.strip() else ""
        if wrong:
            self._problem(f"line {number}: {wrong}")
        return "" if wrong else text

    def _catalog(self) -> None:
        if self.asked.file is None:
            catalog = Catalog("standard input", sys.stdin.buffer.read())
        else:
            catalog = Catalog(self.asked.file)

        waiting = sum(len(message.asks()) for message in catalog.messages if message.is_open)

        def translated(texts: list[str]) -> list[str | None]:
            found = [answers[0][0] for answers in self.interpreter.answers(texts)]
            advance(len(texts))
            for text, answer in zip(texts, found, strict=True):
                self._warn(answer, f"{_short(text)!r} ({self.interpreter.to[0]})")
            return [answer.text if answer.ended and answer.text else None for answer in found]

        with _place(self.asked) as place, progress("translating", waiting) as advance:
            try:
                done = catalog.fill(translated, self.interpreter.wrong)
            finally:  # stopped, it is a catalog that has fewer translations
                if self.asked.out is not None or sys.exc_info()[0] is None:
                    place.write(str(catalog))
        for reason in done.left:
            self._problem(f"left as it was: {reason}")
        say(f"filled {done.filled} and marked them fuzzy, kept {done.kept}, left {len(done.left)}")

    def _write_best(self, place: TextIO, at: int, to: str, answers: list[Translation]) -> None:
        for answer in answers:
            place.write(f"{at + 1}\t{to}\t{answer.score:.4f}\t{_column(answer.text)}\n")

    def _tell_links(self, place: TextIO, text: str, to: str, answer: str) -> None:
        if not (self.align or self.picture) or not answer.strip():
            return
        model, tokenizer = self.interpreter.model, self.interpreter.tokenizer
        found = align(model, tokenizer, Pair(text, answer, to))
        if self.align:
            for link in found.links:
                place.write(f"\t{link.target}\t{link.source}\t{link.weight:.2f}\n")
        if self.picture:
            try:
                draw_alignment(found.site, found.head, path=self.picture)
            except FileError:
                raise
            except ValueError as error:
                raise FileError(f"{self.picture}: cannot be drawn, {error}") from error
            say(f"{self.picture}: {found.site.name}, head {found.head}")

    def summarise(self) -> None:
        """How many answers were of low confidence, where not all of them were named."""
        if self.unsure > WARNINGS and self.asked.kind != "texts":
            say(
                f"warning: {self.unsure} of {self.given} answers are below the confidence "
                f"threshold {self.interpreter.threshold:.2f}"
            )

    def _check(self, answers: list[Translation], where: str, to: str, name: str) -> None:
        if answers and not answers[0].ended:
            limit = self.interpreter.limit
            self._problem(f"{where}: the answer in {to} was cut at {limit} tokens")
        elif answers:
            self._warn(answers[0], f"{name} ({to})")

    def _warn(self, answer: Translation, name: str) -> None:
        """Say that an answer is of low confidence; of those in a file, the first few."""
        self.given += 1
        if not self.interpreter.is_unsure(answer):
            return
        self.unsure += 1
        if self.unsure <= WARNINGS or self.asked.kind == "texts":
            known = (
                "the answer may be wrong" if answer.text.strip() else "not understood, no answer"
            )
            say(
                f"warning: {name}: confidence {answer.confidence:.2f} is below "
                f"{self.interpreter.threshold:.2f}; {known}"
            )

    def _problem(self, what: str) -> None:
        self.problems += 1
        say(what)


def say(what: str) -> None:
    """A line for people, on standard error."""
    print(f"regard: {what}" if "\n" not in what else what, file=sys.stderr)


@contextmanager
def _source(asked: Asked) -> Iterator[BufferedIOBase]:
    if asked.file is None:
        yield cast(BufferedIOBase, sys.stdin.buffer)
        return
    with reading(asked.file) as opened:
        yield opened


@contextmanager
def _place(asked: Asked) -> Iterator[TextIO]:
    """Where answers go, opened before the work; a file gets its name when all is done."""
    how: dict[str, Any] = {"encoding": "utf-8", "newline": "", "errors": "surrogateescape"}
    if asked.out is None:
        yield sys.stdout
        sys.stdout.flush()
    elif is_stream(asked.out):  # a FIFO or device gets each line as it comes
        with asked.out.open("w", **how) as opened:
            yield opened
    else:
        with writing(asked.out) as place:
            try:
                with place.open("w", **how) as opened:
                    yield opened
            except BaseException:
                if kept := keep_partial(place, asked.out):
                    say(f"stopped before the end; what was done is in {kept}")
                raise


def _groups(lines: list[bytes]) -> Iterator[list[bytes]]:
    for first in range(0, len(lines), TOGETHER):
        yield lines[first : first + TOGETHER]


def _check(texts: list[str]) -> None:
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(f"text: needs UTF-8, got {text!r}; try a file") from error


def _column(text: str) -> str:
    """A text that stays in its column and line."""
    return " ".join(text.split("\t")).replace("\n", " ").replace("\r", " ")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a text too long to be a name
        return False


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:59]}…"
