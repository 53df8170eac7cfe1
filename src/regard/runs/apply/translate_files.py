"""Translation of texts and files (lines, .tsv, .po), written as it is done."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from io import BufferedIOBase, TextIOBase
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from regard.costs import shared_encoding_cost
from regard.data import Pair, PoCatalog
from regard.errors import ConfigError, FileError
from regard.files import (
    atomic_write,
    is_stream,
    iter_chunks,
    iter_utf8_lines,
    keep_partial,
    open_binary,
)
from regard.runs.alignment import align
from regard.runs.apply.report import Reporter, SilentReporter, confidence_warning
from regard.runs.apply.translate import TranslationPipeline, shorten
from regard.runs.contents import RunContents
from regard.tasks import Translation

FORMATS = ("lines", "tsv", "po")
BATCH_LINES = 512  # sorted into batches by length; written before the next ones are read
Output = TextIO | TextIOBase

MAX_WARNINGS = 5  # low-confidence warnings per file that are reported one by one


class TranslationReport(NamedTuple):
    """Counts of a translation job.

    `problems` could not be translated (each was reported as a message), `unsure` of the
    `translations` have a confidence below the threshold.

    >>> TranslationReport(translations=3, problems=0, unsure=1).unsure
    1
    """

    translations: int
    problems: int
    unsure: int


@dataclass(kw_only=True)
class TranslationJob:
    """Texts or a file to translate; `run` writes the translations to `out` and reports messages.

    A line of text becomes a line, with one column per language; a .tsv gets one more column per
    language; in a .po the untranslated and fuzzy messages are filled and marked fuzzy. A file is
    replaced at the end; after an interrupt, the finished part is in FILE.partial.

    Args:
        out: a file or an open text stream to write to.
        texts: texts, where there is no file.
        file: a file or an open binary stream to translate instead.
        file_format: "lines", "tsv" (first column) or "po"; None goes by the file's suffix.
        align: write the word alignment below each translation.
        plot: draw the alignment of one text into this file.
        name: how messages name an input stream.
        reporter: receives messages and progress.

    >>> import io
    >>> pipeline = rg.runs.TranslationPipeline(rg.load("phrases", device="cpu"), ["de", "cs"])
    >>> job = TranslationJob(file=io.BytesIO(b"3 days\\n2 days\\n"), out=io.StringIO())
    >>> job.run(pipeline).translations, job.out.getvalue()
    (4, '3 Tage\\t3 dny\\n2 Tage\\t2 dny\\n')
    """

    out: Path | Output
    texts: Sequence[str] = ()
    file: Path | BufferedIOBase | None = None
    file_format: str | None = None
    align: bool = False
    plot: Path | None = None
    name: str = "standard input"
    reporter: Reporter = SilentReporter()
    problems: int = field(default=0, init=False)
    unsure: int = field(default=0, init=False)
    translations: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.file_format is not None and self.file_format not in FORMATS:
            raise ConfigError(
                f"format: needs one of {', '.join(FORMATS)}, got {self.file_format!r}"
            )
        if isinstance(self.out, Path) and not self.out.resolve().parent.is_dir():
            raise FileError(
                f"out: needs a folder that exists, got {self.out.parent}; try another path"
            )
        for text in self.texts:
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise ConfigError(f"text: needs UTF-8, got {text!r}; try a file") from error

    @property
    def format(self) -> str:
        """ "texts" without a file; else the file format."""
        if self.file is None:
            return "texts"
        suffix = self.file.suffix.removeprefix(".") if isinstance(self.file, Path) else ""
        return self.file_format or (suffix if suffix in FORMATS else "lines")

    def run(self, pipeline: TranslationPipeline) -> TranslationReport:
        """Translate everything."""
        self.pipeline = pipeline
        self._check_pipeline()
        match self.format:
            case "po":
                self._translate_catalog()
            case "texts":
                with self._output() as out:
                    self._translate_texts(out)
            case _:
                assert self.file is not None
                file = self.file
                opened = open_binary(file) if isinstance(file, Path) else nullcontext(file)
                with opened as source, self._output() as out:
                    self._translate_lines(source, out)
        if self.unsure > MAX_WARNINGS and self.format != "texts":
            self.reporter.message(
                f"warning: {self.unsure} of {self.translations} translations are below the "
                f"confidence threshold {self.pipeline.threshold:.2f}"
            )
        return TranslationReport(self.translations, self.problems, self.unsure)

    def _check_pipeline(self) -> None:
        languages = self.pipeline.languages
        if self.plot is not None and (len(self.texts) != 1 or len(languages) != 1):
            raise ConfigError("plot: needs one text and one language, got others; try fewer")
        if self.format in ("tsv", "po") and (self.align or self.pipeline.n_best > 1):
            raise ConfigError(f"format: needs lines for --align and --n-best, got {self.format}")
        if self.format == "po" and len(languages) > 1:
            raise ConfigError(
                f"to: needs one language for a .po, got {' '.join(languages)}; "
                "try one file per language"
            )

    def _translate_texts(self, out: Output) -> None:
        texts = self.texts
        for n, by_language in enumerate(self.pipeline.translate(texts)):
            for to, ranked in zip(self.pipeline.languages, by_language, strict=True):
                self._check(ranked, f"text {n + 1}", to, repr(shorten(texts[n], 60)))
                if self.pipeline.n_best > 1:
                    self._write_ranked(out, n, to, ranked)
                else:
                    label = f"{to}\t" if len(self.pipeline.languages) > 1 else ""
                    out.write(f"{label}{_one_line(ranked[0].text)}\n")
                self._write_alignment(out, texts[n], to, ranked[0].text)

    def _translate_lines(self, source: BufferedIOBase, out: Output) -> None:
        file, number = self.file, 0
        size = file.stat().st_size if isinstance(file, Path) and file.is_file() else None
        name = file if isinstance(file, Path) else self.name
        prints = not isinstance(self.out, Path)
        with self.reporter.progress("translating", size, prints_results=prints) as advance:
            for block in iter_utf8_lines(iter_chunks(source), name):
                for first in range(0, len(block), BATCH_LINES):
                    lines = block[first : first + BATCH_LINES]
                    self._translate_batch(lines, number, out)
                    number += len(lines)
                    advance(sum(map(len, lines)) + len(lines))

    def _translate_batch(self, lines: list[bytes], offset: int, out: Output) -> None:
        """Write one line per input line, in order, also for invalid ones."""
        texts = [self._text(line, offset + n + 1) for n, line in enumerate(lines)]
        ready = [n for n, text in enumerate(texts) if text.strip()]
        results = dict(zip(ready, self.pipeline.translate([texts[n] for n in ready]), strict=True))
        for n, line in enumerate(lines):
            by_language = results.get(n, [[] for _ in self.pipeline.languages])
            pairs = list(zip(self.pipeline.languages, by_language, strict=True))
            for to, ranked in pairs:
                self._check(ranked, f"line {offset + n + 1}", to, f"line {offset + n + 1}")
                if self.pipeline.n_best > 1:
                    self._write_ranked(out, offset + n, to, ranked)
            if self.pipeline.n_best == 1:
                columns = [_one_line(ranked[0].text) if ranked else "" for ranked in by_language]
                if self.format == "tsv":
                    columns.insert(0, line.decode(errors="surrogateescape"))
                out.write("\t".join(columns) + "\n")
            for to, ranked in pairs:
                if ranked:
                    self._write_alignment(out, texts[n], to, ranked[0].text)
        out.flush()

    def _text(self, line: bytes, number: int) -> str:
        """The text of a line; empty, with a message, where it cannot be read or translated."""
        column = line.partition(b"\t")[0] if self.format == "tsv" else line
        try:
            text = column.decode()
        except UnicodeDecodeError as error:
            got = f"byte {line[error.start]:#04x} at byte {error.start + 1}"
            self._problem(f"line {number}: it needs UTF-8, got {got}; try iconv -t UTF-8")
            return ""
        reason = self.pipeline.refusal(text) if text.strip() else ""
        reason = "it needs text, got a zero byte" if "\0" in text else reason
        if reason:
            self._problem(f"line {number}: {reason}")
        return "" if reason else text

    def _translate_catalog(self) -> None:
        file = self.file
        assert file is not None
        content = () if isinstance(file, Path) else (file.read(),)
        catalog = PoCatalog(file if isinstance(file, Path) else self.name, *content)
        pending = [message for message in catalog.messages if message.needs_translation]
        total = sum(len(message.untranslated()) for message in pending)

        def translate(texts: list[str]) -> list[str | None]:
            best = [by_language[0][0] for by_language in self.pipeline.translate(texts)]
            advance(len(texts))
            for text, translation in zip(texts, best, strict=True):
                self._warn(translation, f"{shorten(text, 60)!r} ({self.pipeline.languages[0]})")
            return [t.text if t.ended and t.text else None for t in best]

        with self._output() as out, self.reporter.progress("translating", total) as advance:
            try:
                result = catalog.fill(translate, self.pipeline.refusal)
            finally:  # after an interrupt, a catalog with fewer translations
                if isinstance(self.out, Path) or sys.exc_info()[0] is None:
                    out.write(str(catalog))
        for reason in result.skipped:
            self._problem(f"skipped: {reason}")
        self.reporter.message(
            f"filled {result.filled} (marked fuzzy), kept {result.unchanged}, "
            f"skipped {len(result.skipped)}"
        )

    def _write_ranked(self, out: Output, at: int, to: str, ranked: list[Translation]) -> None:
        for translation in ranked:
            text = _one_line(translation.text)
            out.write(f"{at + 1}\t{to}\t{translation.score:.4f}\t{text}\n")

    def _write_alignment(self, out: Output, text: str, to: str, translation: str) -> None:
        if not (self.align or self.plot) or not translation.strip():
            return
        pair = Pair(text, translation, to)
        alignment = align(self.pipeline.model, self.pipeline.tokenizer, pair)
        if self.align:
            for link in alignment.links:
                out.write(f"\t{link.target}\t{link.source}\t{link.weight:.2f}\n")
        if self.plot:
            from regard.inspection.figures.maps import draw_alignment  # imports matplotlib

            try:
                draw_alignment(alignment.site, alignment.head, path=self.plot)
            except FileError:
                raise
            except ValueError as error:
                raise FileError(f"{self.plot}: cannot be drawn, {error}") from error
            head = f"{alignment.site.name}, head {alignment.head}"
            self.reporter.message(f"{self.plot}: {head}")

    def _check(self, ranked: list[Translation], where: str, to: str, name: str) -> None:
        if ranked and not ranked[0].ended:
            limit = self.pipeline.max_new_tokens
            self._problem(f"{where}: the translation into {to} was cut at {limit} tokens")
        elif ranked:
            self._warn(ranked[0], f"{name} ({to})")

    def _warn(self, translation: Translation, name: str) -> None:
        """Count a translation, and warn if its confidence is low; of a file, the first few."""
        self.translations += 1
        if not self.pipeline.is_unsure(translation):
            return
        self.unsure += 1
        if self.unsure <= MAX_WARNINGS or self.format == "texts":
            has_text = bool(translation.text.strip())
            consequence = "the translation may be wrong" if has_text else "no translation"
            confidence, threshold = translation.confidence, self.pipeline.threshold
            self.reporter.message(confidence_warning(name, confidence, threshold, consequence))

    def _problem(self, message: str) -> None:
        self.problems += 1
        self.reporter.message(message)

    @contextmanager
    def _output(self) -> Iterator[Output]:
        """The output, opened first; a file is replaced at the end."""
        out, options = self.out, _TEXT_OPTIONS
        if not isinstance(out, Path):
            yield out
            out.flush()
        elif is_stream(out):  # a FIFO or device gets each line as it comes
            with out.open("w", **options) as file:
                yield file
        else:
            with atomic_write(out) as path:
                try:
                    with path.open("w", **options) as file:
                        yield file
                except BaseException:
                    if partial := keep_partial(path, out):
                        self.reporter.message(f"interrupted; the finished part is in {partial}")
                    raise


_TEXT_OPTIONS: dict[str, Any] = {"encoding": "utf-8", "newline": "", "errors": "surrogateescape"}


def translate_file(
    run: RunContents, file: str | Path, out: str | Path, *, to: str | Sequence[str] = ()
) -> TranslationReport:
    """Translate a text, .tsv or .po file into another file; see `TranslationJob`.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "a.txt"
    >>> _ = file.write_text("3 days\\n")
    >>> translate_file(rg.load("phrases", device="cpu"), file, file, to="de")
    TranslationReport(translations=1, problems=0, unsure=0)
    >>> file.read_text()
    '3 Tage\\n'
    """
    return TranslationJob(file=Path(file), out=Path(out)).run(TranslationPipeline(run, to))


def format_shared_cost(pipeline: TranslationPipeline) -> str:
    """What encoding once for all languages has saved, by formula, at the mean lengths so far."""
    texts, read, written = pipeline.counts
    if not texts:
        return ""
    count = len(pipeline.languages)
    source, target = -(-read // texts), -(-written // (texts * count))
    cost = shared_encoding_cost(pipeline.model, source, target, count)
    return (
        f"per text: M = {source} source tokens, N = {target} target tokens per language (means)\n"
        f"{cost}"
    )


def _one_line(text: str) -> str:
    """The text without tabs and line breaks."""
    return " ".join(text.split("\t")).replace("\n", " ").replace("\r", " ")
