"""Terminal output: messages on standard error, progress bars, live text, exit codes, versions."""

import platform
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version as installed
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from regard.files import is_stream

if TYPE_CHECKING:
    from regard.tasks import TranscribeJob, TranscriptChunk

PAUSE = 1.0  # seconds without new text that end a line of live text


def print_message(text: str) -> None:
    """Print on standard error; a single line is prefixed with `regard: `."""
    print(f"regard: {text}" if "\n" not in text else text, file=sys.stderr, flush=True)


def report_written(out: Path, message: str) -> None:
    """Print what was written: on standard output, or on standard error if that was written to."""
    print(message, file=sys.stderr if is_stream(out) else sys.stdout)


def exit_code(items: int, failed: int, warnings: int) -> int:
    """2 if every item failed, 1 if some failed or had a warning, else 0.

    >>> exit_code(3, 3, 0), exit_code(3, 1, 0), exit_code(3, 0, 1), exit_code(3, 0, 0)
    (2, 1, 1, 0)
    """
    return 2 if items and failed == items else int(failed > 0 or warnings > 0)


@contextmanager
def progress_bar(
    description: str, total: float | None = None, *, prints_results: bool = False
) -> Iterator[Callable[[float], None]]:
    """Show a progress bar on standard error; call the yielded function with each amount done.

    Nothing is shown if standard error is not a terminal, or if results are printed to the same
    terminal meanwhile.
    """
    if not sys.stderr.isatty() or (prints_results and sys.stdout.isatty()):
        yield lambda amount: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    end = [TimeElapsedColumn()] if total is None else [TaskProgressColumn(), TimeRemainingColumn()]
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *end,
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,  # results stay on standard output
    )
    with bar:
        task = bar.add_task(description, total=total)
        yield lambda amount: bar.advance(task, amount)


class TerminalReporter:
    """A `regard.runs.Reporter` that prints messages and draws progress bars on standard error."""

    message = staticmethod(print_message)
    progress = staticmethod(progress_bar)


class LineWriter:
    """Live text for a file or a pipe: one line per word, or per pause."""

    def __init__(self, out: TextIO):
        self.out, self.line, self.silence = out, "", 0.0

    def write(self, text: str, partial_text: str, seconds: float) -> None:
        """Add the text that became stable in this many seconds of audio."""
        # unstable text belongs to the previous word: not a pause
        self.silence = 0.0 if text or partial_text else self.silence + seconds
        *words, self.line = (self.line + text).split(" ")
        if self.silence >= PAUSE:
            words, self.line = [*words, self.line], ""
        for word in filter(None, words):
            print(word, file=self.out, flush=True)

    def end(self) -> None:
        """Write the rest of the line."""
        if self.line:
            print(self.line, file=self.out, flush=True)


class TerminalWriter:
    """Live text for a terminal: one growing line; if it is too long, its end is shown."""

    def __init__(self, out: TextIO):
        self.out, self.text = out, ""

    def write(self, text: str, partial_text: str, seconds: float) -> None:
        """Add the stable text, followed by the unstable text dimmed."""
        self.text += text
        width = shutil.get_terminal_size().columns - 1
        space = max(0, width - len(partial_text))
        shown = self.text[-space:] if space else ""
        dimmed = f"\x1b[2m{partial_text[-width:]}\x1b[0m"
        print(f"\r\x1b[K{shown}{dimmed}", end="", file=self.out, flush=True)

    def end(self) -> None:
        """Write the whole text."""
        print(f"\r\x1b[K{self.text}", file=self.out, flush=True)


def print_transcript(job: "TranscribeJob", path: str) -> int:
    """Print the text of one file as it is recognised, without its name; the exit code."""
    warnings = 0
    for chunk in job.files([path]):
        if chunk.error is not None:
            print_message(str(chunk.error))
            return 2
        print(chunk.text, end="\n" if chunk.is_last else "", flush=True)
        warnings = _print_notes(chunk)
    print_message(job.summary())
    return warnings


def print_live(job: "TranscribeJob", paths: list[str], rate: int | None, seconds: float) -> int:
    """Print the text of samples on standard input as it is recognised; the exit code."""
    from regard.errors import ConfigError, FileError
    from regard.tasks.recognition.pipeline import TranscriptChunk, read_samples

    if len(paths) > 1:
        raise ConfigError("paths: needs - alone, got files beside it; try one after the other")
    if not 0.01 <= seconds <= 10:
        raise ConfigError(f"chunk: needs 0.01 to 10 seconds, got {seconds:g}")
    if sys.stdin.isatty():
        raise FileError(
            "standard input: needs 16-bit samples from a pipe, got a terminal; try "
            f"arecord -q -t raw -f S16_LE -r {job.sample_rate} | regard transcribe … -"
        )
    size, job.chunk_seconds = int((rate or job.sample_rate) * seconds), seconds
    waves = read_samples(sys.stdin.buffer, size, reporter=TerminalReporter())
    writer = TerminalWriter(sys.stdout) if sys.stdout.isatty() else LineWriter(sys.stdout)
    last = TranscriptChunk("standard input")

    def show(chunks: "Iterable[TranscriptChunk]") -> None:
        nonlocal last
        for chunk in chunks:
            writer.write(chunk.text, chunk.partial_text, chunk.seconds)
            last = chunk

    code = 0
    try:
        show(job.stream(waves, rate=rate, name="standard input"))
    except KeyboardInterrupt:  # the usual end of a live stream
        code = 130
        show(job.finish_stream())
    writer.end()
    warnings = _print_notes(last)
    print_message(job.summary())
    return code or exit_code(1, 0, warnings)


def _print_notes(chunk: "TranscriptChunk") -> int:
    """Print the notes and the warning of a finished input; 1 if it is incomplete or unsure."""
    for note in chunk.notes:
        print_message(f"{chunk.path}: {note}")
    if chunk.warning:
        print_message(chunk.warning)
    return int(bool(chunk.warning) or not chunk.is_complete)


def version() -> None:
    """Print the versions of Regard, Python and torch."""
    print(f"regard {installed('regard')}")
    print(f"python {platform.python_version()}")
    print(f"torch {installed('torch')}")  # from the metadata: importing torch takes seconds
