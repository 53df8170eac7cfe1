"""What `regard transcribe` does: sound from files or a pipe, text as it comes, and a report."""

import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any, TextIO

import torch
from torch import Tensor

from regard.data import AudioFile, Resampler
from regard.errors import ConfigError, FileError
from regard.runs import Run
from regard.runs.apply.transcribe import build_transcriber, open_audio, rechunk
from regard.runs.jobs.progress import iterate_with_progress

PAUSE = 1.0  # seconds without a new character after which a line is told
MAGIC = {b"RIFF": "a WAV file", b"fLaC": "a FLAC file", b"OggS": "an OGG file"}


class TranscribeJob:
    """A run made ready to hear, and what came of it; `code` is the command's exit code."""

    def __init__(self, run: Run, *, beam_width: int = 1, normalize_peak: bool = True):
        torch.set_num_threads(1)  # the work is too small to share: two threads only wait
        self.transcriber = build_transcriber(run, beam_width, normalize_peak=normalize_peak)
        self.calibration, self.exit_code = run.calibration, 0
        self.audio_seconds = self.compute_seconds = 0.0  # seconds of sound, and of work
        self.delays: list[float] = []

    def files(self, paths: Sequence[str]) -> None:
        """A line of text for each file; one that is not heard is said, and the others still are."""
        bad = 0
        for path in iterate_with_progress(paths, "transcribing"):
            try:
                sound = open_audio(self.transcriber, path)
            except FileError as error:
                print_stderr(f"regard: {error}")
                bad += 1
                continue
            has_text = self._file(sound, f"{path}\t" if len(paths) > 1 else "")
            for note in sound.notes:
                print_stderr(f"{path}: {note}")
            self.exit_code = self.exit_code if sound.is_complete else 1
            self._judge(path, has_text=has_text)
        self.exit_code = 2 if bad == len(paths) else 1 if bad else self.exit_code
        if bad < len(paths):
            self._report()

    def _file(self, sound: AudioFile, name: str) -> bool:
        """Write a file's text as it comes; whether there was any."""
        print_text(name)
        spaces, has_text = "", False  # a space is written with the word after it
        for piece in rechunk(sound.chunks(), self.transcriber.sample_rate):
            text = spaces + self._hear(piece)
            spaces = text[len(text.rstrip()) :]
            print_text(text.rstrip())
            has_text = has_text or bool(text.strip())
        text = (spaces + self._finish()).rstrip()
        print_text(text + "\n")
        return has_text or bool(text)

    def _judge(self, name: str, *, has_text: bool) -> None:
        """A warning about text that may be wrong, if the run's calibration can tell."""
        if self.calibration is None:
            return
        score, threshold = self.transcriber.score, self.calibration.threshold
        if not has_text:
            print_stderr(f"regard: warning: {name}: nothing recognised")
        elif self.calibration.is_unsure(score):
            told = f"confidence {self.calibration.confidence(score):.2f} is below {threshold:.2f}"
            print_stderr(f"regard: warning: {name}: {told}; the text may be wrong")
        else:
            return
        self.exit_code = self.exit_code or 1

    def live(self, rate: int | None, chunk_seconds: float, *, is_only_input: bool = True) -> None:
        """Text from standard input while it comes, until that ends or somebody interrupts."""
        if not is_only_input:
            raise ConfigError("sounds: needs - alone, got files beside it; try one after the other")
        if not 0.01 <= chunk_seconds <= 10:
            raise ConfigError(f"piece: needs 0.01 to 10 seconds, got {chunk_seconds:g}")
        if sys.stdin.isatty():
            raise FileError(
                "standard input: needs 16-bit samples from a pipe, got a terminal; try "
                f"arecord -q -t raw -f S16_LE -r {self.transcriber.sample_rate} | regard transcribe … -"
            )
        rate = self.transcriber.sample_rate if rate is None else rate
        if not 1000 <= rate <= 1_000_000:
            raise ConfigError(f"rate: needs 1000 to 1000000 samples a second, got {rate}")
        resample = (
            None
            if rate == self.transcriber.sample_rate
            else Resampler(rate, self.transcriber.sample_rate)
        )
        if resample is not None:
            print_stderr(
                f"standard input: resampled from {rate} to {self.transcriber.sample_rate} samples a second"
            )
        shown = TerminalWriter(sys.stdout) if sys.stdout.isatty() else LineWriter(sys.stdout)
        has_text = False

        def hear(wave: Tensor) -> None:
            nonlocal has_text
            began = time.monotonic()
            text = self._hear(wave)
            has_text = has_text or bool(text)
            shown.write(
                text, self.transcriber.partial_text, len(wave) / self.transcriber.sample_rate
            )
            self.delays.append(time.monotonic() - began)

        try:
            for wave in read_samples(sys.stdin.buffer, int(rate * chunk_seconds)):
                hear(wave if resample is None else resample(wave))
        except KeyboardInterrupt:  # the usual end of a live sound: what was heard is not lost
            self.exit_code = 130
        if resample is not None:
            hear(resample.finish())
        text = self._finish()
        shown.write(text, "", 0.0)
        shown.end()
        self._judge("standard input", has_text=has_text or bool(text))
        self._report(f", samples heard {1000 * chunk_seconds:.0f} ms at a time")

    def _hear(self, wave: Tensor) -> str:
        began = time.monotonic()
        text = self.transcriber.push(wave)
        self.compute_seconds += time.monotonic() - began
        self.audio_seconds += len(wave) / self.transcriber.sample_rate
        return text

    def _finish(self) -> str:
        began = time.monotonic()
        text = self.transcriber.finish()
        self.compute_seconds += time.monotonic() - began
        return text

    def _report(self, how: str = "") -> None:
        factor = self.compute_seconds / self.audio_seconds if self.audio_seconds else 0.0
        delay = 1000 * (self.transcriber.delay if how else self.transcriber.stream.config.delay)
        told = f"{self.audio_seconds:.1f} s of sound, real-time factor {factor:.3f}; "
        told += f"latency: the model waits {delay:.0f} ms{how}"
        if self.delays:
            told += f", each in {1000 * median(self.delays):.1f} ms of work"
            told += f" ({1000 * max(self.delays):.1f} at most)"
        print_stderr(told)


def read_samples(source: Any, size: int) -> Iterator[Tensor]:
    """16-bit little-endian samples as they come, `size` together or what there is at the end."""
    held, heard = b"", 0
    read = getattr(source, "read1", source.read)  # does not wait for more than there is
    while more := read(2 * size):
        held += more
        if not heard and held[:4] in MAGIC:
            raise FileError(
                f"standard input: needs bare 16-bit samples, got {MAGIC[held[:4]]}; try its name"
            )
        if len(held) >= 2 * size:
            whole = len(held) // 2 * 2
            heard += whole
            yield _to_wave(held[:whole])
            held = held[whole:]
    if len(held) > 1:
        heard += len(held)
        yield _to_wave(held[: len(held) // 2 * 2])
    if len(held) % 2:
        print_stderr("standard input: it ended within a sample, whose one byte is left out")
    if not heard:
        raise FileError("standard input: needs 16-bit samples, got nothing; try arecord -f S16_LE")


def _to_wave(raw: bytes) -> Tensor:
    whole = torch.frombuffer(bytearray(raw), dtype=torch.int16)
    return whole.float() / 32768


class LineWriter:
    """Text for a file or a pipe: a line a word, or what was said before a pause."""

    def __init__(self, out: TextIO):
        self.out, self.line, self.since = out, "", 0.0

    def write(self, text: str, tentative: str, seconds: float) -> None:
        """Some text that is new, after so many seconds of sound."""
        # what is not decided yet belongs to the word before it: no pause
        self.since = 0.0 if text or tentative else self.since + seconds
        *words, self.line = (self.line + text).split(" ")
        if self.since >= PAUSE:
            words, self.line = [*words, self.line], ""
        for word in filter(None, words):
            print(word, file=self.out, flush=True)

    def end(self) -> None:
        """What is left."""
        if self.line:
            print(self.line, file=self.out, flush=True)


class TerminalWriter:
    """Text for a terminal: one line that grows, its end shown where it is too long."""

    def __init__(self, out: TextIO):
        self.out, self.text = out, ""

    def write(self, text: str, tentative: str, seconds: float) -> None:
        """Some text that is new, and what may follow."""
        self.text += text
        width = shutil.get_terminal_size().columns - 1
        room = max(0, width - len(tentative))
        shown = self.text[-room:] if room else ""
        print(
            f"\r\x1b[K{shown}\x1b[2m{tentative[-width:]}\x1b[0m", end="", file=self.out, flush=True
        )

    def end(self) -> None:
        """All of it, where a line was too short."""
        print(f"\r\x1b[K{self.text}", file=self.out, flush=True)


def print_text(text: str) -> None:
    """Text to standard output at once: whoever reads it sees it come."""
    if text:
        print(text, end="", flush=True)


def print_stderr(text: str) -> None:
    """A line to standard error."""
    print(text, file=sys.stderr, flush=True)
