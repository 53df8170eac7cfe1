"""The sound view: waveform, log-mel features, text and causal attention on one time axis."""

import base64
import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from regard.data import AudioExample, AudioFile
from regard.data.batches import seeded_generator
from regard.data.content.morse.channel import Channel, Keying, key_edges, render_keyings
from regard.decode import BestPath
from regard.files.atomic import temporary_file
from regard.inspection import Sight, Site, look
from regard.inspection.figures.canvas import escape_mathtext, new_figure
from regard.ops.audio import HOP_SECONDS
from regard.runs import Run
from regard.tasks.recognition.evaluator import feature_batches
from regard.tasks.recognition.morse import MorseTask
from regard.tasks.recognition.pipeline import TranscribeJob, TranscriptChunk
from regard.web.explorer.catalog import find_head
from regard.web.explorer.explorer import (
    Explorer,
    ModelRequest,
    finite,
    pack,
    query,
    table_of,
    unpack,
)
from regard.web.jobs import Job

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_SHOWN_SECONDS = 60.0  # drawn and played; all of a recording is transcribed
MAX_COLUMNS, MAX_MAP, MAX_THUMBNAIL = 1000, 256, 40  # columns of the drawings
LEAD_SECONDS = 0.3  # silence before the first tone of a sample


class AudioRequest(ModelRequest):
    """A recording: an uploaded file, or a message keyed as Morse code."""

    file: str | None = Field(None, max_length=80)
    message: str = Field("CQ DE REGARD", max_length=60)
    wpm: float = Field(22.0, ge=8, le=45)  # words per minute
    pitch: float = Field(600.0, ge=250, le=1300)  # Hz
    snr: float = Field(12.0, ge=-10, le=40)  # dB
    seed: int = Field(0, ge=0, lt=1 << 31)  # of the noise


class SoundRequest(AudioRequest):
    """A recording, and the head whose attention is shown."""

    site: str | None = Field(None, max_length=200)  # the last one by default
    head: int | None = Field(None, ge=0, lt=10_000)  # the mean of heads by default
    at: float | None = Field(None, ge=0)  # second of the page's playhead


class Emission(NamedTuple):
    """A label that the recogniser emitted, the time at which it did, and its probability."""

    text: str
    seconds: float
    probability: float


def _figure(response: dict[str, Any]) -> "Figure":
    """Waveform with text, features and the attention map, on one time axis."""
    figure, seconds = new_figure(9, 8.5), response["seconds"]
    wave, features, weights = figure.subplots(3, 1, height_ratios=(1, 1.2, 3))
    low, high = unpack(response["wave"]).numpy()
    at = torch.linspace(0, seconds, len(low)).numpy()
    wave.fill_between(at, low, high)
    for emission in response["emissions"]:
        label = escape_mathtext(emission["text"])
        wave.text(emission["seconds"], 1.02, label, fontsize=9, ha="center")
    wave.set(ylim=(-1, 1), xlim=(0, seconds), ylabel="waveform")
    wave.set_title(escape_mathtext(response["text"]), fontsize=10, pad=16)
    frames = unpack(response["features"]).T.numpy()
    extent = (0, seconds, 0, len(frames))
    features.imshow(frames, origin="lower", aspect="auto", cmap="cividis", extent=extent)
    features.set_ylabel("mel band")
    square = (0, seconds, seconds, 0)
    roots = unpack(response["map"]).sqrt().numpy()  # most weights are small
    weights.imshow(roots, aspect="auto", cmap="cividis", extent=square)
    head = "mean of heads" if response["head"] is None else f"head {response['head']}"
    title = f"{response['site']}, {head}, square-root scale"
    weights.set(xlabel="heard at (s)", ylabel="output at (s)", title=title)
    return figure


def _related(request: SoundRequest, response: Any) -> list[tuple[str, dict[str, Any]]]:
    names = {"model", "file"} if request.file else {*AudioRequest.model_fields} - {"file"}
    return [("sound.audio", request.model_dump(include=names))]  # as the page requests


@query(
    "sound",
    SoundRequest,
    table=lambda x: table_of(x["emissions"], Emission._fields),  # one row per emitted label
    figure=_figure,
    related=_related,
)
def answer_sound(explorer: Explorer, request: SoundRequest, job: Job) -> dict[str, Any]:
    """The text of a recording as `regard transcribe` gives it, and what the model attends to."""
    run = sound_run(explorer, request.model)
    with _sound_file(explorer, run, request) as path:
        text, last = _transcribe(run, path, job)
        wave, total = _shown_wave(run, path)
    job.report(0.8, "following attention")
    model: Any = run.model
    with torch.no_grad(), look(model) as sight:
        features, log_probs = _forward(run, wave)
    job.report(0.9, "drawing")
    notes = list(last.notes)
    if request.file is None and not isinstance(run.data, MorseTask):
        notes.append("the sample is Morse code, which this model was not trained on")
    return {
        "text": text,
        "confidence": None if last.confidence is None else finite(last.confidence),
        "threshold": None if run.calibration is None else run.calibration.threshold,
        "warning": last.warning.removeprefix("warning: "),
        "is_complete": last.is_complete,
        "notes": notes,
        "total_seconds": total,
        "seconds": features.shape[0] * HOP_SECONDS,
        "sample_rate": model.config.sample_rate,
        "delay": finite(model.config.delay),
        "wave": pack(_envelope(wave, features.shape[0], model.config.sample_rate)),
        "features": pack(_pooled(features)),
        "emissions": [x._asdict() for x in emitted(run, log_probs)],
    } | _map(sight, request.site, request.head)


@query("sound.audio", AudioRequest)
def answer_sound_audio(explorer: Explorer, request: AudioRequest, job: Job) -> dict[str, Any]:
    """What is drawn of a recording as a WAV file in base64, at the model's sample rate."""
    run = sound_run(explorer, request.model)
    with _sound_file(explorer, run, request) as path:
        wave, _ = _shown_wave(run, path)
    content = _wav(wave.clamp(-1, 1), run.model.config.sample_rate, "PCM_16")
    return {"wav": base64.b64encode(content).decode()}


def _wav(wave: Tensor, rate: int, subtype: str) -> bytes:
    import soundfile

    file = io.BytesIO()
    soundfile.write(file, wave.numpy(), rate, subtype, format="WAV")
    return file.getvalue()


def sound_run(explorer: Explorer, name: str) -> Run:
    """The run of a recogniser."""
    needs = "a run that transcribes audio"
    return explorer.catalog.run_of_verb("transcribe", name, needs=needs, hint="morse")


def key_wave(request: AudioRequest, rate: int) -> Float[Tensor, " sample"]:
    """The message of a request as Morse code with noise.

    >>> len(key_wave(AudioRequest(model="morse", message="e"), rate=8000))
    6036
    """
    text = " ".join(request.message.upper().split())
    dot = 1.2 / request.wpm
    edges, ends = (tuple(dot * x for x in row) for row in key_edges(text))
    channel = Channel(pitch=request.pitch, snr=request.snr)
    # a causal model needs silence to know that the last letter has ended
    keying = Keying(text, request.wpm, edges, ends, LEAD_SECONDS, max(0.4, 5 * dot), channel)
    generator = seeded_generator("sound", request.seed)
    return render_keyings([keying], rate, generator)[0][0]


@contextmanager
def _sound_file(explorer: Explorer, run: Run, request: AudioRequest) -> Iterator[Path]:
    """The recording of a request as a file, so that it is read as `regard transcribe` reads one."""
    if request.file is not None:
        content = explorer.uploaded(request.file)
    else:
        rate = run.model.config.sample_rate
        content = _wav(key_wave(request, rate), rate, "FLOAT")
    with temporary_file(content, "sound") as path:
        yield path


def _transcribe(run: Run, path: Path, job: Job) -> tuple[str, TranscriptChunk]:
    """The whole text and the last chunk, which holds confidence and notes."""
    text, last, transcribe = "", TranscriptChunk(path), TranscribeJob(run)
    total = AudioFile(path, run.model.config.sample_rate).seconds
    for last in transcribe.files([path]):
        if last.error is not None:
            raise last.error
        text += last.text
        done = min(1.0, transcribe.audio_seconds / max(total, 1e-3))
        job.report(0.8 * done, f"transcribing: {text[-40:]}")
    return text.strip(), last._replace(warning=last.warning.replace(str(path), path.name))


def _shown_wave(run: Run, path: Path) -> tuple[Tensor, float]:
    """The first minute of a recording at the model's rate, and the seconds of all of it."""
    rate = run.model.config.sample_rate
    file, waves, budget = AudioFile(path, rate), list[Tensor](), round(MAX_SHOWN_SECONDS * rate)
    for chunk in file.chunks(1.0):
        waves.append(chunk[:budget])
        budget -= len(chunk)
        if budget <= 0:
            break
    return torch.cat([torch.zeros(0), *waves]), file.seconds


def _forward(run: Run, wave: Tensor) -> tuple[Tensor, Tensor]:
    """Features as the convolutions get them (frame, mel), and log-probabilities (output, label)."""
    model: Any = run.model
    example = AudioExample(wave, "", model.config.sample_rate)
    ((_, batch),) = feature_batches(model, run.tokenizer, [example])
    state = batch.get("before")
    log_probs, _ = model(batch["frames"], batch["frames_lengths"], cmvn_state=state)
    features = model.standardise(model.normalize_features(batch["frames"], state)[0])
    return features[0].float().cpu(), log_probs[0].float().cpu()


def emitted(run: Run, log_probs: Float[Tensor, "time vocab"]) -> Iterator[Emission]:
    """The labels of the best path, each with the time at which it is decided."""
    model: Any = run.model
    path, step = BestPath(), HOP_SECONDS * model.subsample.factor
    for n, row in enumerate(log_probs):
        for label in path(row[None]):
            yield Emission(run.tokenizer.decode([label]), n * step, math.exp(float(row[label])))


def _envelope(wave: Tensor, frames: int, rate: int) -> Float[Tensor, "two column"]:
    """Lowest and highest sample per column, over the time that the features cover."""
    length = max(len(wave), round(frames * HOP_SECONDS * rate), 1)
    columns = min(MAX_COLUMNS, length)
    padded = F.pad(wave, (0, length - len(wave)))
    bounds = torch.linspace(0, length, columns + 1).long().tolist()
    spans = [padded[a : max(b, a + 1)] for a, b in pairwise(bounds)]
    return torch.stack([torch.stack([x.min(), x.max()]) for x in spans], 1)


def _pooled(features: Tensor) -> Tensor:
    """Features with at most so many frames as are drawn, each a mean of neighbours."""
    size = -(-len(features) // MAX_COLUMNS)
    if size <= 1:
        return features
    return F.avg_pool1d(features.T[None], size, ceil_mode=True)[0].T


def _map(sight: Sight, name: str | None, head: int | None) -> dict[str, Any]:
    """The map of one head, or of the mean of heads, pooled to a size that can be drawn."""
    site, _ = find_head(sight, name or sight.names[-1], head or 0)
    weights, pool = _pooled_map(site, head, MAX_MAP)
    return {
        "sites": [{"name": x.name, "heads": x.heads} for x in sight],
        "site": site.name,
        "head": head,
        "outputs": site.queries,
        "thumbnails": pack(torch.cat([_pooled_map(x, None, MAX_THUMBNAIL)[0] for x in sight])),
        "pool": pool,
        "map": pack(weights.mean(0) if head is None else weights),
    }


def _pooled_map(site: Site, head: int | None, most: int) -> tuple[Tensor, int]:
    """Weights of blocks, (row, column) or (head, row, column), and the side of a block."""
    pool = -(-site.queries // most)
    return site.window(head, pool=(pool, pool))[0], pool
