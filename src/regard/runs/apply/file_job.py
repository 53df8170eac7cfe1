"""File jobs: the inputs of a file or a list, answered by a run, written in order, resumable."""

import hashlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from io import BufferedIOBase, TextIOBase
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import torch

from regard.errors import ConfigError, FileError
from regard.files import (
    PartialFile,
    is_stream,
    iter_chunks,
    iter_utf8_lines,
    open_binary,
    parse_json,
)
from regard.files.partial import StreamOutput
from regard.models.serialization import WEIGHTS_FILE
from regard.runs.apply.answers import TaskAnswers, submitter
from regard.runs.contents import RunContents
from regard.tasks import Answer, JobInput, Reporter
from regard.tasks.pipeline import shorten
from regard.tasks.reporter import SilentReporter

LINES = ("inputs", "lines", "tsv")  # formats that are answered line by line
FORMATS = ("lines", "tsv", "po")
MAX_WARNINGS = 5  # low-confidence warnings per file that are reported one by one
Output = TextIO | TextIOBase
Blocks = Iterable[list[bytes]]


@dataclass
class JobReport:
    """Counts of a job: inputs, those without any output, problems, low-confidence warnings."""

    inputs: int = 0
    failed: int = 0
    problems: int = 0
    warnings: int = 0


class _Line(NamedTuple):
    """An input, what is wrong with it, and the columns before its answer."""

    given: JobInput
    refusal: str = ""
    prefix: tuple[str, ...] = ()


@dataclass(kw_only=True)
class FileJob:
    """Answers the lines of a file, the first column of a .tsv, a .po catalog, or a list of inputs.

    A line of text becomes a line; a .tsv gets more columns; in a .po the untranslated and fuzzy
    messages are filled and marked fuzzy. An output file appears when it is complete. Until then
    the finished part is in FILE.partial, and the same job continues it, also after a crash.

    Args:
        answers: computes the answers.
        out: a file or an open text stream to write to.
        inputs: texts or file names, where there is no file.
        file: a file or an open binary stream instead.
        file_format: "lines", "tsv" (first column) or "po"; None goes by the file's suffix.
        jobs: processes, of one thread each; 1 computes in this one.
        identity: what else distinguishes the job, such as the run and its options.
        name: how messages name an input stream.
        verb: what the progress bar says.
        reporter: receives messages and progress.

    >>> import io
    >>> answers = rg.runs.TaskAnswers(rg.load("phrases", device="cpu"), to=["de", "cs"])
    >>> job = FileJob(answers=answers, file=io.BytesIO(b"3 days\\n2 days\\n"), out=io.StringIO())
    >>> job.run().inputs, job.out.getvalue()
    (2, '3 Tage\\t3 dny\\n2 Tage\\t2 dny\\n')
    """

    answers: TaskAnswers
    out: Path | Output
    inputs: Sequence[str] = ()
    file: Path | BufferedIOBase | None = None
    file_format: str | None = None
    jobs: int = 1
    identity: dict[str, Any] = field(default_factory=dict)
    name: str = "standard input"
    verb: str = "applying"
    reporter: Reporter = SilentReporter()

    def __post_init__(self) -> None:
        if self.file_format is not None and self.file_format not in FORMATS:
            raise ConfigError(
                f"format: needs one of {', '.join(FORMATS)}, got {self.file_format!r}"
            )
        self.answers.check(self.format, len(self.inputs))
        if self.jobs < 1 or (self.jobs > 1 and torch.cuda.is_initialized()):
            rule = "1 or more" if self.jobs < 1 else "1 on a GPU"
            raise ConfigError(f"jobs: needs {rule}, got {self.jobs}")
        if isinstance(self.out, Path) and not self.out.resolve().parent.is_dir():
            raise FileError(
                f"out: needs a folder that exists, got {self.out.parent}; try another path"
            )
        for text in () if self.answers.takes_files else self.inputs:
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise ConfigError(f"text: needs UTF-8, got {text!r}; try a file") from error

    @property
    def format(self) -> str:
        """ "inputs" without a file; else the file format."""
        if self.file is None:
            return "inputs"
        suffix = self.file.suffix.removeprefix(".") if isinstance(self.file, Path) else ""
        return self.file_format or (suffix if suffix in FORMATS else "lines")

    def run(self) -> JobReport:
        """Answer everything, and write it."""
        started, self.report, self.digest = time.monotonic(), JobReport(), hashlib.sha256()
        self.before = 0  # inputs that an earlier process has finished
        (self._answer_lines if self.format in LINES else self._answer_document)()
        report = self.report
        if report.warnings > MAX_WARNINGS and self.format != "inputs":
            self.reporter.message(
                f"warning: {report.warnings} outputs of {report.inputs} inputs are below the "
                "confidence threshold"
            )
        if isinstance(self.out, Path) and not is_stream(self.out):
            parts = [f"{report.inputs - self.before} inputs in {time.monotonic() - started:.1f} s"]
            parts += [f"{self.before} before"] if self.before else []
            parts += [f"{report.problems} with a problem"] if report.problems else []
            parts += [f"{report.warnings} with low confidence"] if report.warnings else []
            self.reporter.message(f"{self.out}: {', '.join(parts)}")
        return report

    def _answer_lines(self) -> None:
        size = len(self.inputs) if self.file is None else None
        if isinstance(self.file, Path) and self.file.is_file():
            size = self.file.stat().st_size
        prints = not isinstance(self.out, Path)
        with (
            self._blocks() as blocks,
            self._output() as out,
            self.reporter.progress(self.verb, size, prints_results=prints) as advance,
        ):
            blocks = self._after(blocks, out.state, advance)
            for raw, answers in self._answered(self._batches(blocks)):
                out.write("".join(self._written(*x) for x in answers))
                self._count(raw, advance)
                out.commit(self._state())

    @contextmanager
    def _blocks(self) -> Iterator[Blocks]:
        """Lists of raw inputs: what has arrived so far of a pipe, everything of a list."""
        if self.file is None:
            yield [[text.encode(errors="surrogateescape") for text in self.inputs]]
            return
        name = self.file if isinstance(self.file, Path) else self.name
        opened = open_binary(self.file) if isinstance(self.file, Path) else nullcontext(self.file)
        with opened as source:
            yield iter_utf8_lines(iter_chunks(source), name)

    def _after(self, blocks: Blocks, state: dict[str, Any], advance: Any) -> Blocks:
        """The blocks after the inputs that an earlier process has finished."""
        if not state:
            return blocks
        blocks, done = iter(blocks), state["report"]["inputs"]
        rest = list[bytes]()
        while done > self.report.inputs and (block := next(blocks, None)) is not None:
            missing = done - self.report.inputs
            self._count(block[:missing], advance)
            rest = block[missing:]
        if self._state()["digest"] != state["digest"]:
            raise FileError(
                f"{self.out}: needs the same inputs to be continued, got others; "
                f"try deleting {self.out}.partial"
            )
        self.report, self.before = JobReport(**state["report"]), done
        self.reporter.message(f"{self.out}: continued after {done} inputs")
        return chain([rest], blocks)

    def _batches(self, blocks: Blocks) -> Iterator[list[bytes]]:
        size = self.answers.batch_size
        is_file = self.file is None or (isinstance(self.file, Path) and self.file.is_file())
        # full batches, the same ones after an interrupt; a pipe is answered as it comes
        for block in [chain.from_iterable(blocks)] if is_file else blocks:
            items = iter(block)
            yield from iter(lambda items=items: list(islice(items, size)), [])

    def _count(self, raw: Sequence[bytes], advance: Callable[[float], None]) -> None:
        for line in raw:
            self.digest.update(line + b"\n")
        self.report.inputs += len(raw)
        advance(len(raw) if self.file is None else sum(map(len, raw)) + len(raw))

    def _state(self) -> dict[str, Any]:
        return {"report": vars(self.report).copy(), "digest": self.digest.copy().hexdigest()}

    def _parse(self, raw: bytes, number: int) -> _Line:
        """The text of a line, and why it cannot be answered."""
        prefix = ()
        if self.format == "tsv":
            prefix = (raw.decode(errors="surrogateescape"),)
            raw = raw.partition(b"\t")[0]
        text = raw.decode(errors="surrogateescape")
        name = f"line {number}"
        if self.file is None:
            name = text if self.answers.takes_files else repr(shorten(text, 60))
        given = JobInput(number, text, name, is_listed=self.file is None)
        if self.answers.takes_files:
            return _Line(given)
        try:
            raw.decode()
        except UnicodeDecodeError as error:
            got = f"byte {raw[error.start]:#04x} at byte {error.start + 1}"
            return _Line(given, f"it needs UTF-8, got {got}; try iconv -t UTF-8", prefix)
        is_blank = self.file is not None and not text.strip()
        reason = "it needs text, got a zero byte" if "\0" in text else ""
        reason = reason or ("" if is_blank else self.answers.refusal(text))
        if reason and self.file is None:
            raise ConfigError(f"text: needs to fit the model, got {shorten(text, 40)!r}; {reason}")
        return _Line(given, reason, prefix)

    def _answered(
        self, batches: Iterator[list[bytes]]
    ) -> Iterator[tuple[list[bytes], list[tuple[_Line, Answer]]]]:
        """Raw inputs, and parsed ones with their answers, a batch at a time."""
        number = self.report.inputs
        with submitter(self.answers, self.jobs) as submit:
            waiting = deque[tuple[list[bytes], list[_Line], Callable[[], list[Answer]]]]()
            for raw in batches:
                lines = [self._parse(line, number + n) for n, line in enumerate(raw, 1)]
                number += len(raw)
                given = [line.given for line in lines if self._is_ready(line)]
                waiting.append((raw, lines, submit(given)))
                if len(waiting) > (2 * self.jobs if self.jobs > 1 else 0):
                    yield self._merged(*waiting.popleft())
            while waiting:
                yield self._merged(*waiting.popleft())

    def _is_ready(self, line: _Line) -> bool:
        return not line.refusal and (self.file is None or bool(line.given.text.strip()))

    def _merged(
        self, raw: list[bytes], lines: list[_Line], answers: Callable[[], list[Answer]]
    ) -> tuple[list[bytes], list[tuple[_Line, Answer]]]:
        outputs, merged = iter(answers()), list[tuple[_Line, Answer]]()
        for line in lines:
            if self._is_ready(line):
                merged.append((line, next(outputs)))
            else:
                problems = (f"{line.given.name}: {line.refusal}",) if line.refusal else ()
                merged.append((line, Answer([("",) * self.answers.columns], problems)))
        return raw, merged

    def _written(self, line: _Line, answer: Answer) -> str:
        """The lines of an answer; its messages are reported."""
        self.report.failed += not answer.rows
        self.report.problems += len(answer.problems)
        for message in (*answer.problems, *answer.notes):
            self.reporter.message(message)
        for warning in answer.warnings:
            self.report.warnings += 1
            if self.report.warnings <= MAX_WARNINGS or self.format == "inputs":
                self.reporter.message(warning)
        return "".join("\t".join((*line.prefix, *row)) + "\n" for row in answer.rows)

    @contextmanager
    def _output(self) -> Iterator[PartialFile | StreamOutput]:
        """The output, opened first; a file is replaced at the end."""
        self.final_text: str | None = None
        if not isinstance(self.out, Path) or is_stream(self.out):
            options: Any = {"encoding": "utf-8", "newline": "", "errors": "surrogateescape"}
            opened = self.out.open("w", **options) if isinstance(self.out, Path) else None
            with opened or nullcontext(self.out) as file:
                out = StreamOutput(file)
                yield out
                out.complete(self.final_text)
            return
        own = {"format": self.format, "batch": self.answers.batch_size}
        identity = {**own, "columns": self.answers.columns, **self.identity}
        partial = PartialFile(self.out, identity)
        try:
            yield partial
            partial.complete(self.final_text)
        except BaseException:
            if message := partial.close():
                self.reporter.message(
                    f"interrupted after {self.report.inputs} inputs; the finished part is in "
                    f"{message}, and the same command continues it"
                )
            raise

    def _answer_document(self) -> None:
        """Answer a file as a whole; batches that an interrupted process finished are restored."""
        content = None if isinstance(self.file, Path) or self.file is None else self.file.read()
        name = self.file if isinstance(self.file, Path) else self.name
        document = self.answers.pipeline.document(name, content)

        def answer(texts: list[str]) -> list[str | None]:
            if journal:
                before, record = journal.popleft()
                if before != texts:
                    raise FileError(
                        f"{self.out}: needs the same file to be continued, got another; "
                        f"try deleting {self.out}.partial"
                    )
            else:
                record = document.compute(texts)
                out.journal([texts, record])
            answers = document.restore(texts, record)
            self.report.warnings = document.warnings
            self._count([text.encode() for text in texts], lambda _: advance(len(texts)))
            out.commit(self._state())
            return answers

        with self._output() as out, self.reporter.progress(self.verb, document.total) as advance:
            journal = self._read_journal(out.read())
            if journal:
                self.before = sum(len(texts) for texts, _ in journal)
                self.reporter.message(f"{self.out}: continued after {self.before} inputs")
            problems, summary = document.fill(answer)
            self.final_text = str(document)
        self.report.problems += len(problems)
        for message in (*problems, summary):
            self.reporter.message(message)

    def _read_journal(self, text: str) -> deque[tuple[list[str], Any]]:
        """The texts and records of batches that an interrupted process finished."""
        try:
            return deque((texts, record) for texts, record in map(parse_json, text.splitlines()))
        except (ValueError, TypeError) as error:
            raise FileError(
                f"{self.out}.partial: needs the journal of a job, got a damaged file; "
                "try deleting it"
            ) from error


def run_identity(run: RunContents, **options: Any) -> dict[str, Any]:
    """What distinguishes a job of this run from others: its weights and options.

    >>> run_identity(rg.load("phrases", device="cpu"), to=["de"])["to"]
    ['de']
    """
    identity: dict[str, Any] = {"run": str(run.folder), **options}
    if run.folder is not None and (weights := run.folder / WEIGHTS_FILE).exists():
        status = os.stat(weights)
        identity["weights"] = [status.st_size, status.st_mtime_ns]
    return identity


def apply_file(
    run: RunContents, file: str | Path, out: str | Path, *, jobs: int = 1, **options: Any
) -> JobReport:
    """Apply a run of any task to the lines of a file; see `FileJob`.

    Args:
        run: a run of any task on texts.
        file: lines of text, or a .tsv, whose first column is the input.
        out: the output; may be the file itself.
        jobs: processes.
        options: of the task, such as `to=["de"]`.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "a.txt"
    >>> _ = file.write_text("3 days\\n")
    >>> apply_file(rg.load("phrases", device="cpu"), file, file, to=["de"]).problems
    0
    >>> file.read_text()
    '3 Tage\\n'
    """
    answers, identity = TaskAnswers(run, **options), run_identity(run, **options)
    job = FileJob(answers=answers, file=Path(file), out=Path(out), jobs=jobs, identity=identity)
    return job.run()
