"""Transcription of audio files or of a live stream by the recogniser of a run, with timing."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.data import AudioExample, AudioFile, Resampler
from regard.decode import PrefixBeam, Transcriber
from regard.errors import ConfigError, FileError
from regard.ops.maybe_none import MaybeNone
from regard.tasks.pipeline import Answer, JobInput, Pipeline, TrainedRun, require_verb
from regard.tasks.recognition.evaluator import Transcript, transcribe_batch_detailed
from regard.tasks.recognition.verb import Transcribe, TranscribeOptions
from regard.tasks.reporter import Reporter, low_confidence

MAGIC = {b"RIFF": "a WAV file", b"fLaC": "a FLAC file", b"OggS": "an OGG file"}

BATCH_FILES, BATCH_SECONDS = 16, 30.0  # short files are transcribed together, others as streams


class TranscriptChunk(NamedTuple):
    """New text of one input, as it is recognised.

    The last chunk of an input has `is_last`; `error` is set if the file could not be read.
    """

    path: str | Path
    text: str = ""  # decided since the previous chunk
    partial_text: str = ""  # may still change
    seconds: float = 0.0  # of audio in this chunk
    is_last: bool = False
    is_complete: bool = True  # False if the file is damaged or truncated
    notes: tuple[str, ...] = ()  # such as "resampled from …"
    warning: str = ""  # about low confidence or a narrow band
    score: float = 0.0  # of the whole text, in the last chunk
    confidence: float | MaybeNone = None  # calibrated; None for a run without a calibration
    error: FileError | None = None


class TranscribeJob(Pipeline):
    """Transcribes files or a stream with one run, and measures the time.

    Args:
        run: a run of a recogniser.
        options: `TranscribeOptions`; None makes them of `values`.
        values: `beam_width` and `normalize_peak`, and the `device`.

    >>> job = TranscribeJob(rg.load("morse", device="cpu"))
    >>> [type(chunk.error).__name__ for chunk in job.files(["none.wav"])]
    ['FileError']
    """

    declares = Transcribe
    batch_size = BATCH_FILES

    def __init__(self, run: TrainedRun, options: TranscribeOptions | None = None, **values: Any):
        require_verb(run, "transcribe")
        super().__init__(run, options, **values)
        beam_width, normalize_peak = self.options.beam_width, self.options.normalize_peak
        search = PrefixBeam(width=beam_width) if beam_width != 1 else None
        self.transcriber = Transcriber(
            self.model, run.tokenizer, search=search, normalize_peak=normalize_peak
        )
        self.sample_rate, self.calibration = self.transcriber.sample_rate, run.calibration
        self._trained_rate = getattr(run.recipe.data, "trained_rate", 0)
        self.audio_seconds = self.compute_seconds = 0.0
        self.chunk_times: list[float] = []  # to compute each chunk of a stream
        self.chunk_seconds = 0.0  # of audio in each
        self._has_text = self._is_live = False
        # the same texts as from the stream, where no option needs it
        self._in_batches = beam_width == 1 and normalize_peak
        self._resampler: Resampler | None = None
        self._name, self._notes, self._rate = "stream", tuple[str, ...](), self.sample_rate

    @property
    def delay(self) -> float:
        """Seconds of audio that the model waits for before it decides."""
        return self.transcriber.delay if self._is_live else self.transcriber.stream.config.delay

    def __call__(self, inputs: Sequence[str | Path]) -> list[Transcript | FileError]:
        outputs, text = list[Transcript | FileError](), ""
        for chunk in self.files(inputs):
            text += chunk.text
            if chunk.is_last:
                facts = chunk.confidence, chunk.warning, chunk.notes, chunk.is_complete
                transcript = Transcript(text.strip(), chunk.score, *facts)
                outputs.append(transcript if chunk.error is None else chunk.error)
                text = ""
        return outputs

    def answer(self, given: JobInput, output: Transcript, *, confidence: bool = False) -> Answer:
        row = given.text, output.text, *self.sure(output, confidence)
        notes = tuple(f"{given.text}: {note}" for note in output.notes)
        problems, notes = ((), notes) if output.is_complete else (notes, ())
        return Answer([row], problems, (output.warning,) if output.warning else (), notes)

    def as_json(self, output: Transcript) -> dict[str, Any]:
        warning = output.warning.removeprefix("warning: ")
        return {"text": output.text, "confidence": output.confidence, "warning": warning}

    def summary(self) -> str:
        """Seconds of audio, and how fast they were transcribed."""
        if not self.audio_seconds:  # nothing could be read, or other processes did it
            return ""
        factor = self.compute_seconds / self.audio_seconds
        text = f"{self.audio_seconds:.1f} s of audio, real-time factor {factor:.3f}; "
        wait = "for the end" if math.isinf(self.delay) else f"{1000 * self.delay:.0f} ms"
        text += f"latency: the model waits {wait}"
        if times := [1000 * seconds for seconds in self.chunk_times]:
            text += f", chunks of {1000 * self.chunk_seconds:.0f} ms"
            text += f", each computed in {median(times):.1f} ms ({max(times):.1f} at most)"
        return text

    def files(self, paths: Sequence[str | Path]) -> Iterator[TranscriptChunk]:
        """Transcribe files one after the other; a file that cannot be read stops no other."""
        for n in range(0, len(paths), BATCH_FILES):
            block = [(path, self._open(path)) for path in paths[n : n + BATCH_FILES]]
            files = [x for _, x in block if isinstance(x, AudioFile) and self._in_batches]
            short = [audio for audio in files if audio.seconds <= BATCH_SECONDS]
            results = dict(zip(short, self._batch(short), strict=True))
            for path, audio in block:
                if isinstance(audio, FileError):
                    yield TranscriptChunk(path, is_last=True, error=audio)
                elif audio in results:
                    text, score = results[audio][:2]
                    self._has_text = bool(text)
                    yield self._last(path, text, score, audio)
                else:
                    yield from self._stream_file(path, audio)

    def _open(self, path: str | Path) -> AudioFile | FileError:
        try:
            return AudioFile(path, self.sample_rate)
        except FileError as error:
            return error

    def _batch(self, files: Sequence[AudioFile]) -> list[Transcript]:
        waves, started = ([file.wave() for file in files], time.monotonic())
        sounds = [AudioExample(wave, "", self.sample_rate) for wave in waves]
        model, tokenizer = self.transcriber.stream.model, self.transcriber.tokenizer
        transcripts = transcribe_batch_detailed(model, tokenizer, sounds)
        self.compute_seconds += time.monotonic() - started
        self.audio_seconds += sum(map(len, waves)) / self.sample_rate
        return transcripts

    def _stream_file(self, path: str | Path, audio: AudioFile) -> Iterator[TranscriptChunk]:
        # a first pass over the file prepares the transcriber
        self.transcriber.prepare(AudioFile(path, self.sample_rate).chunks())
        spaces, self._has_text = "", False  # trailing spaces wait for the next word
        for chunk in rechunk(audio.chunks(), self.sample_rate):
            text = spaces + self._push(chunk)
            spaces = text[len(text.rstrip()) :]
            yield TranscriptChunk(path, text.rstrip())
        text = (spaces + self._compute(self.transcriber.finish)).rstrip()
        yield self._last(path, text, self.transcriber.score, audio)

    def stream(
        self, source: Iterable[Tensor], *, rate: int | None = None, name: str = "stream"
    ) -> Iterator[TranscriptChunk]:
        """Transcribe a live stream of sample chunks in [-1, 1] until it ends.

        After an interrupt, `finish_stream` gives the text that is still pending. A rate of None is
        the model's; messages name the stream by `name`.
        """
        rate = self.sample_rate if rate is None else rate
        if not 1000 <= rate <= 1_000_000:
            raise ConfigError(f"rate: needs 1000 to 1000000 samples per second, got {rate}")
        self._is_live, self._has_text, self._name, self._rate = True, False, name, rate
        if rate != self.sample_rate:
            self._resampler = Resampler(rate, self.sample_rate)
            self._notes = (f"resampled from {rate} to {self.sample_rate} samples per second",)
        return self._stream(source)

    def _stream(self, waves: Iterable[Tensor]) -> Iterator[TranscriptChunk]:
        for wave in waves:
            yield self._live(wave if self._resampler is None else self._resampler(wave))
        yield from self.finish_stream()

    def finish_stream(self) -> Iterator[TranscriptChunk]:
        """The last chunks of a live stream."""
        if self._resampler is not None:
            yield self._live(self._resampler.finish())
        text = self._compute(self.transcriber.finish)
        yield self._last(self._name, text, self.transcriber.score)

    def _live(self, wave: Tensor) -> TranscriptChunk:
        before = self.compute_seconds
        text = self._push(wave)
        self.chunk_times.append(self.compute_seconds - before)
        seconds = len(wave) / self.sample_rate
        return TranscriptChunk(self._name, text, self.transcriber.partial_text, seconds)

    def _push(self, wave: Tensor) -> str:
        self.audio_seconds += len(wave) / self.sample_rate
        return self._compute(lambda: self.transcriber.push(wave))

    def _compute(self, decode: Callable[[], str]) -> str:
        started = time.monotonic()
        text = decode()
        self.compute_seconds += time.monotonic() - started
        self._has_text = self._has_text or bool(text.strip())
        return text

    def _last(
        self, path: str | Path, text: str, score: float, audio: AudioFile | None = None
    ) -> TranscriptChunk:
        has_text, rate, notes, is_complete = self._has_text, self._rate, self._notes, True
        if audio is not None:
            rate, notes = audio.file.samplerate, tuple(audio.notes)
            is_complete = audio.is_complete
        confidence, reasons = None, [] if has_text else ["nothing recognised"]
        if self.calibration is not None:
            confidence = self.calibration.confidence(score if has_text else -math.inf)
            if has_text and self.calibration.is_unsure(score):
                reasons.append(low_confidence(confidence, self.calibration.threshold))
        if rate < self._trained_rate:
            reasons.append(
                f"recorded at {rate} Hz, so that it has nothing above {rate // 2} Hz, and the "
                f"training had {self._trained_rate} Hz"
            )
        if has_text and reasons:
            reasons.append("the text may be wrong")
        warning = f"warning: {path}: {'; '.join(reasons)}" if reasons else ""
        return TranscriptChunk(
            path, text, is_last=True, is_complete=is_complete, notes=notes, warning=warning,
            score=score, confidence=confidence,
        )  # fmt: skip


def read_samples(
    source: Any, size: int, *, name: str = "standard input", reporter: Reporter | None = None
) -> Iterator[Tensor]:
    """Chunks of raw 16-bit little-endian samples from a binary stream, as they arrive.

    A chunk has `size` samples or more, the last one what is left; half a sample at the end is
    dropped and reported.

    >>> import io
    >>> [chunk.tolist() for chunk in read_samples(io.BytesIO(bytes([0, 64, 0, 192])), 1)]
    [[0.5], [-0.5]]
    """
    buffer, count = b"", 0
    read = getattr(source, "read1", source.read)  # does not block until `size` is complete
    while block := read(2 * size):
        buffer += block
        if not count and buffer[:4] in MAGIC:
            raise FileError(
                f"{name}: needs raw 16-bit samples, got {MAGIC[buffer[:4]]}; try its name"
            )
        if len(buffer) >= 2 * size:
            end = len(buffer) // 2 * 2
            count += end
            yield samples_to_wave(buffer[:end])
            buffer = buffer[end:]
    count += len(buffer) // 2
    if len(buffer) > 1:
        yield samples_to_wave(buffer[: len(buffer) // 2 * 2])
    if len(buffer) % 2 and reporter is not None:
        reporter.message(f"{name}: it ended within a sample; the last byte is dropped")
    if not count:
        raise FileError(f"{name}: needs 16-bit samples, got nothing; try arecord -f S16_LE")


def samples_to_wave(samples: bytes) -> Tensor:
    """The wave in [-1, 1] of 16-bit little-endian samples."""
    if not samples:
        return torch.zeros(0)
    return torch.frombuffer(bytearray(samples), dtype=torch.int16).float() / 32768


def rechunk(chunks: Iterable[Tensor], size: int) -> Iterator[Tensor]:
    """Concatenate chunks to at least `size` samples: the cost per chunk is constant.

    >>> [len(chunk) for chunk in rechunk(torch.zeros(7).split(2), 4)]
    [4, 3]
    """
    buffer, count = list[Tensor](), 0
    for chunk in chunks:
        buffer.append(chunk)
        count += len(chunk)
        if count >= size:
            yield torch.cat(buffer)
            buffer, count = [], 0
    yield torch.cat([torch.zeros(0), *buffer])
