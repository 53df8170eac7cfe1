"""`regard transcribe`: the text of audio files or of a live stream."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.apply import Confidence, Jobs, Out, run_job

if TYPE_CHECKING:
    from regard.runs import TranscribeJob, TranscriptChunk


def transcribe(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="Run folder or pretrained model: morse.")
    ],
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE…|-",
            help="WAV, FLAC or OGG; - for raw 16-bit samples on standard input.",
        ),
    ],
    rate: Annotated[
        int | None,
        typer.Option(help="Sample rate of standard input; the model's if not given."),
    ] = None,
    beam: Annotated[int, typer.Option(help="CTC beam width; 1 takes the best path.")] = 1,
    normalize: Annotated[
        bool, typer.Option(help="Normalise level and noise floor to those of training.")
    ] = True,
    chunk: Annotated[float, typer.Option(help="Seconds of live audio per chunk.")] = 0.1,
    out: Out = None,
    jobs: Jobs = 1,
    confidence: Confidence = False,
) -> None:
    """Transcribe audio files or a live stream.

    arecord -q -t raw -f S16_LE -r 8000 | regard transcribe morse -

    Text is printed as it is recognised: one line per file, with its name if there are several;
    live, one line per word or pause, and on a terminal one growing line. Everything else goes to
    standard error. Exit code 1: a file could not be read in full, or a confidence is low. 2: no
    file could be read.
    """
    import torch

    from regard import runs

    torch.set_num_threads(1)  # the work per chunk is too small to share
    opened = runs.load(run, device="cpu")
    job = runs.TranscribeJob(opened, beam_width=beam, normalize_peak=normalize)
    if "-" in paths:
        raise typer.Exit(_stream(job, paths, rate, chunk))
    if len(paths) == 1 and out is None and not confidence:
        raise typer.Exit(_file(job, paths[0]))
    answers = runs.AudioAnswers(job, confidence=confidence)
    options = {"beam": beam, "normalize": normalize, "verb": "transcribing"}
    code = run_job(opened, answers, paths, out=out, jobs=jobs, **options)
    _print_timing(job)
    raise typer.Exit(code)


def _file(job: "TranscribeJob", path: str) -> int:
    """Print the text of one file as it is recognised, without its name."""
    from regard.cli.output import print_message

    warnings = 0
    for chunk in job.files([path]):
        if chunk.error is not None:
            print_message(str(chunk.error))
            return 2
        print(chunk.text, end="\n" if chunk.is_last else "", flush=True)
        warnings = _print_notes(chunk)
    _print_timing(job)
    return warnings


def _stream(job: "TranscribeJob", paths: list[str], rate: int | None, chunk_seconds: float) -> int:
    import sys

    from regard.cli.output import LineWriter, TerminalReporter, TerminalWriter, exit_code
    from regard.errors import ConfigError, FileError
    from regard.runs.apply.transcribe import TranscriptChunk, read_samples

    if len(paths) > 1:
        raise ConfigError("paths: needs - alone, got files beside it; try one after the other")
    if not 0.01 <= chunk_seconds <= 10:
        raise ConfigError(f"chunk: needs 0.01 to 10 seconds, got {chunk_seconds:g}")
    if sys.stdin.isatty():
        raise FileError(
            "standard input: needs 16-bit samples from a pipe, got a terminal; try "
            f"arecord -q -t raw -f S16_LE -r {job.sample_rate} | regard transcribe … -"
        )
    size = int((rate or job.sample_rate) * chunk_seconds)
    waves = read_samples(sys.stdin.buffer, size, reporter=TerminalReporter())
    writer = TerminalWriter(sys.stdout) if sys.stdout.isatty() else LineWriter(sys.stdout)
    last = TranscriptChunk("standard input")

    def show(chunks: Iterable[TranscriptChunk]) -> None:
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
    _print_timing(job, chunk_seconds)
    return code or exit_code(1, 0, warnings)


def _print_notes(chunk: "TranscriptChunk") -> int:
    """Print the notes and the warning of a finished input; 1 if it is incomplete or unsure."""
    from regard.cli.output import print_message

    for note in chunk.notes:
        print_message(f"{chunk.path}: {note}")
    if chunk.warning:
        print_message(chunk.warning)
    return int(bool(chunk.warning) or not chunk.is_complete)


def _print_timing(job: "TranscribeJob", chunk_seconds: float | None = None) -> None:
    from statistics import median

    from regard.cli.output import print_message

    if not job.audio_seconds:  # nothing could be read, or other processes did it
        return
    factor = job.compute_seconds / job.audio_seconds
    text = f"{job.audio_seconds:.1f} s of audio, real-time factor {factor:.3f}; "
    text += f"latency: the model waits {1000 * job.delay:.0f} ms"
    if chunk_seconds is not None:
        text += f", chunks of {1000 * chunk_seconds:.0f} ms"
    if job.chunk_times:
        times = [1000 * seconds for seconds in job.chunk_times]
        text += f", each computed in {median(times):.1f} ms ({max(times):.1f} at most)"
    print_message(text)
