"""A recipe for recordings with transcripts: manifests, sample rate and model."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from regard.data.audio.speech_manifest import (
    KALDI_FILES,
    LJSPEECH_FILE,
    SUFFIXES,
    find_manifests,
    read_manifest,
)
from regard.data.source import LoadReport
from regard.data.split import SPLITS
from regard.data.table import table_kind
from regard.errors import FileError, counted
from regard.models import RecogniserConfig, WordRecogniserConfig
from regard.tasks.data_report import DataReport
from regard.tasks.proposals.proposal import (
    Proposal,
    choose_size,
    find_splits,
    inspect_or_raise,
    list_files,
    make_proposal,
    one_path,
)
from regard.tasks.recognition.speech import SpeechTask

AUDIO_FOLDERS = ("clips", "wavs", "wav", "audio", "recordings")
EPOCHS = 40
MIN_BATCH, MAX_BATCH, BATCH_SECONDS = 8, 32, 16  # short recordings in larger batches
WORD_EPOCHS, WORD_BATCH = 40, 32  # of single words
MIN_STEPS = 800  # CTC predicts only blanks for the first hundreds of steps
MAX_WORDS, MIN_COUNT = 100, 10  # of data sets of commands: so few words, each so frequent
# (hours below which it applies, layers, dim)
SIZES = [(1, 3, 128), (10, 6, 144), (float("inf"), 8, 192)]


def propose_speech(paths: Sequence[Path], name: str) -> Proposal:
    """A recogniser, of single words or streaming, for a folder with a manifest, or a manifest."""
    comments: dict[str, str] = {}
    task = _find(one_path(paths, "one folder with a manifest, or a manifest"), comments)
    report = inspect_or_raise(task, "recordings", paths)
    if (count := len(task.source().manifests)) < len(SPLITS):
        missing = [x for x in ("valid", "test") if count == 1 or not getattr(task, x)]
        names = " and ".join(missing)
        comments["data.folder"] = f"5% of train each become {names}, by a hash of the file name"
    rates, seconds = report.values("rate"), report.length("seconds")
    rate = min(16000, rates.most_common(1)[0][0])
    known = ", ".join(f"{hertz:,} Hz ({count:,})" for hertz, count in rates.most_common(4))
    comments["data.sample_rate"] = f"the most frequent of {known}, at most 16,000; resampled to it"
    hours, train = seconds.total / 3600, report.sizes["train"]
    if task.is_closed_set and all(len(text.split()) == 1 for text in task.train_texts):
        return _propose_words(replace(task, sample_rate=rate), name, report, comments)
    layers, dim = choose_size(SIZES, hours)
    batch = min(max(MIN_BATCH, round(BATCH_SECONDS * train / seconds.total)), MAX_BATCH)
    mels = 40 if rate < 16000 else 80
    comments |= {
        "data.n_mels": "40 below 16,000 Hz, else 80",
        "data.max_seconds": f"the longest recording has {seconds.max:g} s",
        "model.layers": f"{counted(layers, 'layer')} of {dim} for {hours:,.2f} hours",
        "model.vocab": "replaced by the number of units in the data",
        "model.chunk": "outputs of 40 ms that are computed together: a latency of 0.64 s",
        "train.batch_size": f"recordings of {seconds.total / train:.1f} s on average",
    }
    words = Counter(w for text in task.train_texts for w in text.split())
    if len(words) <= MAX_WORDS and min(words.values()) >= MIN_COUNT:
        task = replace(task, tokenizer_type="words")
        comments["data.tokenizer_type"] = (
            f"{len(words)} different words, each {min(words.values())} times or more"
        )
    augmentation = task.augmentation
    if hours < 1:
        augmentation = replace(augmentation, eq=0.0, spec_augment=0, reverb=0.0)
        off = ("eq", "spec_augment", "reverb")
        comments |= {f"data.augmentation.{key}": "off below an hour of audio" for key in off}
    data = replace(task, sample_rate=rate, n_mels=mels, augmentation=augmentation)
    model = RecogniserConfig(
        vocab=2, layers=layers, dim=dim, heads=4, dropout=0.1, chunk=16, left_chunks=8,
        cmvn_depth=12.0,
    )  # fmt: skip
    return make_proposal(
        name, data, model, report, comments, epoch_steps=train / batch, epochs=EPOCHS,
        min_steps=MIN_STEPS, batch_size=batch,
    )  # fmt: skip


def _propose_words(
    task: SpeechTask, name: str, report: DataReport, comments: dict[str, str]
) -> Proposal:
    """One word per recording, of few: the whole recording is classified."""
    words, train = Counter(task.train_texts), report.sizes["train"]
    comments |= {
        "data.n_mels": "more bands show the pitch of a voice, not the word",
        "data.max_seconds": f"the longest recording has {report.length('seconds').max:g} s",
        "data.tokenizer_type": (
            f"one of {len(words)} words per recording, each {min(words.values())} times or more"
        ),
        "data.speeds": "also trained on faster and slower: other voices",
        "data.augmentation.vtlp": "vocal tracts up to 12% shorter or longer: other voices",
        "data.augmentation.eq": "off: the mean of each band is subtracted",
        "data.augmentation.reverb": "off below an hour of audio",
        "model.vocab": "replaced by the number of words in the data; type = 'recogniser' is for "
        "sequences of words, and answers live",
    }
    seconds = report.length("seconds").total
    reverb = 0.0 if seconds < 3600 else task.augmentation.reverb
    augmentation = replace(task.augmentation, eq=0.0, spec_augment=1, reverb=reverb)
    data = replace(task, n_mels=40, tokenizer_type="words", min_snr=15.0, augmentation=augmentation)
    return make_proposal(
        name, data, WordRecogniserConfig(vocab=2, dropout=0.1), report, comments,
        epoch_steps=train / WORD_BATCH, epochs=WORD_EPOCHS, min_steps=MIN_STEPS,
        batch_size=WORD_BATCH, lr=3e-3, monitor="exact",
    )  # fmt: skip


def _find(path: Path, comments: dict[str, str]) -> SpeechTask:
    """The manifests, and the folder that their recordings are relative to."""
    names: dict[str, Any]
    if path.is_file():
        folder, names = path.resolve().parent, {"train": path.name}
    else:
        folder, names = path.resolve(), _manifests(path)
    task = SpeechTask(folder=str(folder), **names)
    first = folder / names["train"] if names else find_manifests(folder)[0]
    audio = next((file for _, file, _ in read_manifest(first, LoadReport())), None)
    if audio is not None and not audio.is_file():
        for place in AUDIO_FOLDERS:
            if (folder / place / audio.name).is_file():
                comments["data.audio_folder"] = "where the recordings of the manifest are"
                return replace(task, audio_folder=place)
    return task


def _manifests(folder: Path) -> dict[str, Any]:
    """Names of the manifests where `find_manifests` would not find them."""
    files = list_files(folder)
    if any(file.name in (*KALDI_FILES, LJSPEECH_FILE) for file in files):
        return {}
    splits = find_splits(files, lambda file: table_kind(file) is not None)
    one = {split: group[0].name for split, group in splits.items() if len(group) == 1}
    if "train" in one and set(one) == set(splits):
        return one
    try:
        find_manifests(folder)
    except FileError:
        tables = [file.name for file in files if table_kind(file)]
        got = ", ".join(tables) or f"no {', '.join(SUFFIXES)} file"
        raise FileError(
            f"{folder}: needs one manifest, or train, valid and test, got {got}; try the manifest "
            "itself: regard new speech FILE"
        ) from None
    return {}
