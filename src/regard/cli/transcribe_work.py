"""What `regard transcribe` does: sound from files or a pipe, text as it comes, and a report."""

import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any, TextIO

import torch
from torch import Tensor

from regard.cli.progress import over
from regard.data import Resample, SoundFile
from regard.errors import ConfigError, FileError
from regard.train import Run
from regard.train.transcribing import hearing, open_sound, together

PAUSE = 1.0  # seconds without a new character after which a line is told
MAGIC = {b"RIFF": "a WAV file", b"fLaC": "a FLAC file", b"OggS": "an OGG file"}


class Job:
    """A run made ready to hear, and what came of it; `code` is the command's exit code."""

    def __init__(self, run: Run, *, beam: int = 1, level: bool = True):
        torch.set_num_threads(1)  # the work is too small to share: two threads only wait
        self.transcriber = hearing(run, beam, level=level)
        self.calibration, self.code = run.calibration, 0
        self.heard = self.spent = 0.0  # seconds of sound, and of work
        self.delays: list[float] = []

    def files(self, paths: Sequence[str]) -> None:
        """A line of text for each file; one that is not heard is said, and the others still are."""
        bad = 0
        for path in over(paths, "transcribing"):
            try:
                sound = open_sound(self.transcriber, path)
            except FileError as error:
                say(f"regard: {error}")
                bad += 1
                continue
            has_text = self._file(sound, f"{path}\t" if len(paths) > 1 else "")
            for note in sound.notes:
                say(f"{path}: {note}")
            self.code = self.code if sound.whole else 1
            self._judge(path, has_text=has_text)
        self.code = 2 if bad == len(paths) else 1 if bad else self.code
        if bad < len(paths):
            self._report()

    def _file(self, sound: SoundFile, name: str) -> bool:
        """Write a file's text as it comes; whether there was any."""
        write(name)
        spaces, has_text = "", False  # a space is written with the word after it
        for piece in together(sound.pieces(), self.transcriber.rate):
            text = spaces + self._hear(piece)
            spaces = text[len(text.rstrip()) :]
            write(text.rstrip())
            has_text = has_text or bool(text.strip())
        text = (spaces + self._finish()).rstrip()
        write(text + "\n")
        return has_text or bool(text)

    def _judge(self, name: str, *, has_text: bool) -> None:
        """A warning about text that may be wrong, if the run's calibration can tell."""
        if self.calibration is None:
            return
        score, threshold = self.transcriber.score, self.calibration.threshold
        if not has_text:
            say(f"regard: warning: {name}: nothing recognised")
        elif self.calibration.is_unsure(score):
            told = f"confidence {self.calibration.confidence(score):.2f} is below {threshold:.2f}"
            say(f"regard: warning: {name}: {told}; the text may be wrong")
        else:
            return
        self.code = self.code or 1

    def live(self, rate: int | None, piece: float, *, alone: bool = True) -> None:
        """Text from standard input while it comes, until that ends or somebody interrupts."""
        if not alone:
            raise ConfigError("sounds: needs - alone, got files beside it; try one after the other")
        if not 0.01 <= piece <= 10:
            raise ConfigError(f"piece: needs 0.01 to 10 seconds, got {piece:g}")
        if sys.stdin.isatty():
            raise FileError(
                "standard input: needs 16-bit samples from a pipe, got a terminal; try "
                f"arecord -q -t raw -f S16_LE -r {self.transcriber.rate} | regard transcribe … -"
            )
        rate = self.transcriber.rate if rate is None else rate
        if not 1000 <= rate <= 1_000_000:
            raise ConfigError(f"rate: needs 1000 to 1000000 samples a second, got {rate}")
        resample = None if rate == self.transcriber.rate else Resample(rate, self.transcriber.rate)
        if resample is not None:
            say(
                f"standard input: resampled from {rate} to {self.transcriber.rate} samples a second"
            )
        shown = Screen(sys.stdout) if sys.stdout.isatty() else Lines(sys.stdout)
        has_text = False

        def hear(wave: Tensor) -> None:
            nonlocal has_text
            began = time.monotonic()
            text = self._hear(wave)
            has_text = has_text or bool(text)
            shown.more(text, self.transcriber.maybe, len(wave) / self.transcriber.rate)
            self.delays.append(time.monotonic() - began)

        try:
            for wave in samples(sys.stdin.buffer, int(rate * piece)):
                hear(wave if resample is None else resample(wave))
        except KeyboardInterrupt:  # the usual end of a live sound: what was heard is not lost
            self.code = 130
        if resample is not None:
            hear(resample.finish())
        text = self._finish()
        shown.more(text, "", 0.0)
        shown.end()
        self._judge("standard input", has_text=has_text or bool(text))
        self._report(f", samples heard {1000 * piece:.0f} ms at a time")

    def _hear(self, wave: Tensor) -> str:
        began = time.monotonic()
        text = self.transcriber.hear(wave)
        self.spent += time.monotonic() - began
        self.heard += len(wave) / self.transcriber.rate
        return text

    def _finish(self) -> str:
        began = time.monotonic()
        text = self.transcriber.finish()
        self.spent += time.monotonic() - began
        return text

    def _report(self, how: str = "") -> None:
        factor = self.spent / self.heard if self.heard else 0.0
        delay = 1000 * (self.transcriber.delay if how else self.transcriber.stream.config.delay)
        told = f"{self.heard:.1f} s of sound, real-time factor {factor:.3f}; "
        told += f"latency: the model waits {delay:.0f} ms{how}"
        if self.delays:
            told += f", each in {1000 * median(self.delays):.1f} ms of work"
            told += f" ({1000 * max(self.delays):.1f} at most)"
        say(told)


def samples(source: Any, size: int) -> Iterator[Tensor]:
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
        say("standard input: it ended within a sample, whose one byte is left out")
    if not heard:
        raise FileError("standard input: needs 16-bit samples, got nothing; try arecord -f S16_LE")


def _to_wave(raw: bytes) -> Tensor:
    whole = torch.frombuffer(bytearray(raw), dtype=torch.int16)
    return whole.float() / 32768


class Lines:
    """Text for a file or a pipe: a line a word, or what was said before a pause."""

    def __init__(self, out: TextIO):
        self.out, self.line, self.since = out, "", 0.0

    def more(self, text: str, maybe: str, seconds: float) -> None:
        """Some text that is new, after so many seconds of sound."""
        # what is not decided yet belongs to the word before it: no pause
        self.since = 0.0 if text or maybe else self.since + seconds
        *words, self.line = (self.line + text).split(" ")
        if self.since >= PAUSE:
            words, self.line = [*words, self.line], ""
        for word in filter(None, words):
            print(word, file=self.out, flush=True)

    def end(self) -> None:
        """What is left."""
        if self.line:
            print(self.line, file=self.out, flush=True)


class Screen:
    """Text for a terminal: one line that grows, its end shown where it is too long."""

    def __init__(self, out: TextIO):
        self.out, self.text = out, ""

    def more(self, text: str, maybe: str, seconds: float) -> None:
        """Some text that is new, and what may follow."""
        self.text += text
        width = shutil.get_terminal_size().columns - 1
        room = max(0, width - len(maybe))
        shown = self.text[-room:] if room else ""
        print(f"\r\x1b[K{shown}\x1b[2m{maybe[-width:]}\x1b[0m", end="", file=self.out, flush=True)

    def end(self) -> None:
        """All of it, where a line was too short."""
        print(f"\r\x1b[K{self.text}", file=self.out, flush=True)


def write(text: str) -> None:
    """Text to standard output at once: whoever reads it sees it come."""
    if text:
        print(text, end="", flush=True)


def say(text: str) -> None:
    """A line to standard error."""
    print(text, file=sys.stderr, flush=True)
