"""The work of `regard translate`: what comes in, what is made of it, and where it goes."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import Any, NamedTuple, TextIO, cast

from regard.costs import shared_encoding_cost
from regard.data import Pair, PoCatalog
from regard.errors import ConfigError, FileError
from regard.files import (
    atomic_write,
    file_descriptor,
    is_stream,
    iter_chunks,
    iter_utf8_lines,
    keep_partial,
    open_binary,
)
from regard.inspection.figures.maps import draw_alignment
from regard.runs import TranslationPipeline, align
from regard.runs.jobs.progress import progress_bar
from regard.tasks import Translation

FORMATS = ("lines", "tsv", "po")
BATCH_LINES = 512  # lines; those of like length make batches, and what is done is kept if it stops
WARNINGS = 5  # of low confidence that a file gets in full; the rest is counted


class TranslationRequest(NamedTuple):
    """What is to be translated (texts, or a file: None is standard input), and where it goes."""

    texts: list[str]
    file: Path | None
    file_format: str
    out: Path | None

    @staticmethod
    def parse(
        arguments: list[str], file_format: str | None, out: Path | None
    ) -> "TranslationRequest":
        """Sort out what was typed."""
        if file_format is not None and file_format not in FORMATS:
            raise ConfigError(f"format: needs one of {', '.join(FORMATS)}, got {file_format!r}")
        if not arguments and sys.stdin.isatty():
            raise ConfigError("text: needs a text, a file or - for standard input, got none")
        if out is not None and not out.resolve().parent.is_dir():
            raise FileError(f"out: needs a folder that exists, got {out.parent}; try another place")
        if out is not None and file_descriptor(out) == 1:
            out = None  # /dev/stdout
        if arguments in ([], ["-"]):
            return TranslationRequest([], None, file_format or "lines", out)
        _check(arguments)
        file = Path(arguments[0])
        if len(arguments) == 1 and _is_file(file):
            named = file.suffix.removeprefix(".")
            return TranslationRequest(
                [], file, file_format or (named if named in FORMATS else "lines"), out
            )
        if len(arguments) == 1 and (
            file.suffix in (".po", ".tsv", ".txt") or file_format is not None
        ):
            raise FileError(f"{file}: needs to be a file, got nothing there")
        return TranslationRequest(arguments, None, "texts", out)


class TranslateJob:
    """One translation of all that was asked.

    `problems` counts what could not be done, `unsure` the answers of low confidence among `given`.
    """

    def __init__(
        self,
        request: TranslationRequest,
        pipeline: TranslationPipeline,
        *,
        align: bool = False,
        plot: Path | None = None,
    ):
        self.request, self.pipeline, self.problems = request, pipeline, 0
        self.unsure_count, self.answer_count = 0, 0
        self.align, self.plot = align, plot
        several = len(request.texts) != 1 or len(pipeline.languages) != 1
        if plot is not None and several:
            raise ConfigError("picture: needs one text and one language, got others; try fewer")
        if request.file_format in ("tsv", "po") and (align or pipeline.n_best > 1):
            raise ConfigError(
                f"format: needs lines for --align and --n-best, got {request.file_format}"
            )
        if request.file_format == "po" and len(pipeline.languages) > 1:
            raise ConfigError(
                f"to: needs one language for a .po, got {' '.join(pipeline.languages)}; "
                "try one file a language"
            )

    def run(self) -> None:
        """Do it; what is done is written before the next is begun."""
        if self.request.file_format == "po":
            self._catalog()
            return
        with _source(self.request) as source, _place(self.request) as place:
            if self.request.file_format == "texts":
                self._texts(place)
                return
            file, number = self.request.file, 0
            size = file.stat().st_size if file is not None and file.is_file() else None
            with progress_bar("translating", size, prints_results=place is sys.stdout) as advance:
                for some in iter_utf8_lines(iter_chunks(source), file or "standard input"):
                    for lines in _groups(some):
                        self._some(lines, number, place)
                        number += len(lines)
                        advance(sum(map(len, lines)) + len(lines))

    def print_cost(self) -> None:
        """What reading once has saved, next to the formula, for texts of the mean length."""
        texts, read, written = self.pipeline.counts
        if not texts:
            return
        count = len(self.pipeline.languages)
        source, target = -(-read // texts), -(-written // (texts * count))
        print_message(
            f"a text: M = {source} tokens read, N = {target} written in each language (means)"
        )
        print_message(str(shared_encoding_cost(self.pipeline.model, source, target, count)))

    def _texts(self, place: TextIO) -> None:
        texts = self.request.texts
        for n, found in enumerate(self.pipeline.translate(texts)):
            for to, answers in zip(self.pipeline.languages, found, strict=True):
                self._check(answers, f"text {n + 1}", to, repr(_short(texts[n])))
                if self.pipeline.n_best > 1:
                    self._write_best(place, n, to, answers)
                else:
                    named = f"{to}\t" if len(self.pipeline.languages) > 1 else ""
                    place.write(f"{named}{_column(answers[0].text)}\n")
                self._tell_links(place, texts[n], to, answers[0].text)

    def _some(self, lines: list[bytes], before: int, place: TextIO) -> None:
        """Some lines: each becomes one, in order, whatever is wrong with it."""
        texts = [self._text(line, before + n + 1) for n, line in enumerate(lines)]
        ready = [n for n, text in enumerate(texts) if text.strip()]
        found = dict(zip(ready, self.pipeline.translate([texts[n] for n in ready]), strict=True))
        for n, line in enumerate(lines):
            answers = found.get(n, [[] for _ in self.pipeline.languages])
            for to, some in zip(self.pipeline.languages, answers, strict=True):
                self._check(some, f"line {before + n + 1}", to, f"line {before + n + 1}")
                if self.pipeline.n_best > 1:
                    self._write_best(place, before + n, to, some)
            if self.pipeline.n_best == 1:
                columns = [_column(some[0].text) if some else "" for some in answers]
                kept = (
                    [line.decode(errors="surrogateescape")]
                    if self.request.file_format == "tsv"
                    else []
                )
                place.write("\t".join([*kept, *columns]) + "\n")
            for to, some in zip(self.pipeline.languages, answers, strict=True):
                if some:
                    self._tell_links(place, texts[n], to, some[0].text)
        place.flush()

    def _text(self, line: bytes, number: int) -> str:
        """What a line asks for; nothing, said, where it cannot be read or translated."""
        try:
            text = (
                line.partition(b"\t")[0] if self.request.file_format == "tsv" else line
            ).decode()
        except UnicodeDecodeError as error:
            got = f"byte {line[error.start]:#04x} at byte {error.start + 1}"
            self._problem(f"line {number}: it needs UTF-8, got {got}; try iconv -t UTF-8")
            return ""
        if "\0" in text:
            self._problem(f"line {number}: it needs text, got a zero byte")
            return ""
        wrong = self.pipeline.refusal(text) if text.strip() else ""
        if wrong:
            self._problem(f"line {number}: {wrong}")
        return "" if wrong else text

    def _catalog(self) -> None:
        if self.request.file is None:
            catalog = PoCatalog("standard input", sys.stdin.buffer.read())
        else:
            catalog = PoCatalog(self.request.file)

        waiting = sum(
            len(message.untranslated()) for message in catalog.messages if message.needs_translation
        )

        def translated(texts: list[str]) -> list[str | None]:
            found = [answers[0][0] for answers in self.pipeline.translate(texts)]
            advance(len(texts))
            for text, answer in zip(texts, found, strict=True):
                self._warn(answer, f"{_short(text)!r} ({self.pipeline.languages[0]})")
            return [answer.text if answer.ended and answer.text else None for answer in found]

        with _place(self.request) as place, progress_bar("translating", waiting) as advance:
            try:
                done = catalog.fill(translated, self.pipeline.refusal)
            finally:  # stopped, it is a catalog that has fewer translations
                if self.request.out is not None or sys.exc_info()[0] is None:
                    place.write(str(catalog))
        for reason in done.skipped:
            self._problem(f"left as it was: {reason}")
        print_message(
            f"filled {done.filled} and marked them fuzzy, kept {done.unchanged}, left {len(done.skipped)}"
        )

    def _write_best(self, place: TextIO, at: int, to: str, answers: list[Translation]) -> None:
        for answer in answers:
            place.write(f"{at + 1}\t{to}\t{answer.score:.4f}\t{_column(answer.text)}\n")

    def _tell_links(self, place: TextIO, text: str, to: str, answer: str) -> None:
        if not (self.align or self.plot) or not answer.strip():
            return
        model, tokenizer = self.pipeline.model, self.pipeline.tokenizer
        found = align(model, tokenizer, Pair(text, answer, to))
        if self.align:
            for link in found.links:
                place.write(f"\t{link.target}\t{link.source}\t{link.weight:.2f}\n")
        if self.plot:
            try:
                draw_alignment(found.site, found.head, path=self.plot)
            except FileError:
                raise
            except ValueError as error:
                raise FileError(f"{self.plot}: cannot be drawn, {error}") from error
            print_message(f"{self.plot}: {found.site.name}, head {found.head}")

    def print_summary(self) -> None:
        """How many answers were of low confidence, where not all of them were named."""
        if self.unsure_count > WARNINGS and self.request.file_format != "texts":
            print_message(
                f"warning: {self.unsure_count} of {self.answer_count} answers are below the confidence "
                f"threshold {self.pipeline.threshold:.2f}"
            )

    def _check(self, answers: list[Translation], where: str, to: str, name: str) -> None:
        if answers and not answers[0].ended:
            limit = self.pipeline.max_new_tokens
            self._problem(f"{where}: the answer in {to} was cut at {limit} tokens")
        elif answers:
            self._warn(answers[0], f"{name} ({to})")

    def _warn(self, answer: Translation, name: str) -> None:
        """Say that an answer is of low confidence; of those in a file, the first few."""
        self.answer_count += 1
        if not self.pipeline.is_unsure(answer):
            return
        self.unsure_count += 1
        if self.unsure_count <= WARNINGS or self.request.file_format == "texts":
            known = (
                "the answer may be wrong" if answer.text.strip() else "not understood, no answer"
            )
            print_message(
                f"warning: {name}: confidence {answer.confidence:.2f} is below "
                f"{self.pipeline.threshold:.2f}; {known}"
            )

    def _problem(self, what: str) -> None:
        self.problems += 1
        print_message(what)


def print_message(message: str) -> None:
    """A line for people, on standard error."""
    print(f"regard: {message}" if "\n" not in message else message, file=sys.stderr)


@contextmanager
def _source(asked: TranslationRequest) -> Iterator[BufferedIOBase]:
    if asked.file is None:
        yield cast(BufferedIOBase, sys.stdin.buffer)
        return
    with open_binary(asked.file) as opened:
        yield opened


@contextmanager
def _place(asked: TranslationRequest) -> Iterator[TextIO]:
    """Where answers go, opened before the work; a file gets its name when all is done."""
    how: dict[str, Any] = {"encoding": "utf-8", "newline": "", "errors": "surrogateescape"}
    if asked.out is None:
        yield sys.stdout
        sys.stdout.flush()
    elif is_stream(asked.out):  # a FIFO or device gets each line as it comes
        with asked.out.open("w", **how) as opened:
            yield opened
    else:
        with atomic_write(asked.out) as place:
            try:
                with place.open("w", **how) as opened:
                    yield opened
            except BaseException:
                if kept := keep_partial(place, asked.out):
                    print_message(f"stopped before the end; what was done is in {kept}")
                raise


def _groups(lines: list[bytes]) -> Iterator[list[bytes]]:
    for first in range(0, len(lines), BATCH_LINES):
        yield lines[first : first + BATCH_LINES]


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
