"""Recognition recipes: Morse code at held-out speeds, and own recordings with a manifest."""

from dataclasses import replace
from itertools import islice
from random import Random

import jiwer
import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from regard import runs, tasks, train
from regard.data import (
    AudioBatches,
    CharTokenizer,
    Morse,
    SpeechAugmentation,
    SpeechManifest,
    Tokenizer,
    augment_log_mel,
    normalize_text,
    seeded_generator,
    speech_preprocessor,
)
from regard.data.audio import speech_batches as speech_module
from regard.data.audio.augmentation import add_white_noise
from regard.data.audio.speech_batches import SORT_WINDOW, label_batch, speech_batches
from regard.data.content.morse.channel import render_keyings
from regard.data.split import SPLITS, hash_split
from regard.errors import ConfigError, FileError, ShapeError
from regard.ops import log_mel
from regard.runs import load_run
from regard.tasks import MorseTask, SpeechTask, edit_distance, error_rate, recipe, transcribe_batch
from regard.tasks.base import EncodedCache
from regard.tasks.proposals.kinds import propose

PITCHES = {"a": 400, "b": 1100, "c": 2400}  # each letter is a tone


def tone(text, rate=8000):
    """0.2 s per letter, separated by silence."""
    time = np.arange(rate // 5) / rate
    tones = [np.append(np.sin(2 * np.pi * PITCHES[x] * time), np.zeros(400)) for x in text]
    return np.concatenate(tones).astype("float32") * 0.3


@pytest.fixture
def recordings(tmp_path):
    """A folder of synthesised recordings with three manifests."""
    folder = tmp_path / "recordings"
    folder.mkdir()
    texts = {
        "train": ["ab", "bc", "ca", "abc", "cab", "ba"],
        "valid": ["ac", "cb"],
        "test": ["bac"],
    }
    for split, rows in texts.items():
        for n, text in enumerate(rows):
            name = f"{split}{n}.{'wav' if n % 2 else 'flac'}"
            soundfile.write(folder / name, tone(text), 8000)
        lines = [f"{split}{n}.{'wav' if n % 2 else 'flac'}\t{t}\n" for n, t in enumerate(rows)]
        (folder / f"{split}.tsv").write_text("".join(lines))
    return folder


def test_a_run_whose_data_is_not_there_leaves_nothing_behind(tmp_path):
    recipe = runs.override_settings(
        tasks.recipe("speech"), [f"folder={tmp_path / 'none'}", "device=cpu"]
    )
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "notes.txt").write_text("mine")
    for folder in (tmp_path / "run", kept):
        with pytest.raises(FileError, match=r"none: needs manifest\.tsv, or .*, got none"):
            runs.fit(recipe, folder)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert [path.name for path in kept.iterdir()] == ["notes.txt"]


def test_a_batch_of_morse_is_what_is_sent_one_by_one():
    source = Morse(snr=(300, 300), letters=(1, 6))
    names = [f"train/0/{n}" for n in range(4)]
    waves, lengths = render_keyings(
        [source.draw_keying(name) for name in names], 8000, seeded_generator(0)
    )
    for n, sound in enumerate(islice(source.examples("train", 0), 4)):
        assert int(lengths[n]) == len(sound.wave)
        assert_close(waves[n, : lengths[n]], sound.wave, atol=4e-3, rtol=0)
        assert not waves[n, lengths[n] :].any()


def test_a_batch_of_morse_has_the_noise_that_was_asked_for():
    source = Morse(snr=(0, 0), fading=0.0, letters=(8, 8))
    waves, lengths = render_keyings([source.draw_keying("a")], 8000, seeded_generator(1))
    keyed = source.draw_keying("a")
    quiet = waves[0, : int(keyed.lead_silence * 8000) - 40]
    loud = waves[0, : int(lengths)]
    silent = next(Morse(snr=(300, 300), fading=0.0, letters=(8, 8)).examples("train", 0)).wave
    down = (silent.abs() > 0.05).float().mean()
    assert 0.8 < float(quiet.std() / loud.std() * (1 + down) ** 0.5) < 1.25


def test_silence_after_the_last_letter_lets_a_live_listener_know_that_it_is_over():
    source = Morse(wpm=(8, 40))
    assert all(
        k.tail_silence >= 5 * 1.2 / k.wpm for k in (source.draw_keying(str(n)) for n in range(50))
    )


def test_held_out_speeds_are_tested_and_never_trained_on():
    morse = MorseTask(test_size=4, valid_size=2)
    trained = [morse.source().draw_keying(f"train/0/{n}").wpm for n in range(500)]
    assert not any(low <= wpm <= high for wpm in trained for low, high in morse.held_out_bands)
    assert min(trained) < 12
    assert max(trained) > 38
    assert len(morse.evaluator(morse.tokenizer(0), "test").audio) == 4


def test_each_recording_comes_once_in_batches_of_similar_length():
    batches = AudioBatches(
        float, lambda plan: (plan * 7) % 48, lambda plans, number: {"x": torch.tensor(plans)},
        batch_size=3,
    )  # fmt: skip
    window = [batch["x"] for batch in islice(batches, SORT_WINDOW)]
    assert sorted(torch.cat(window).tolist()) == list(range(3 * SORT_WINDOW))
    assert all(float(((x * 7) % 48).diff().max()) == 1 for x in window)


def test_a_batch_depends_on_its_number_alone():
    morse, words = MorseTask(), MorseTask().tokenizer(0)
    config = train.TrainConfig(steps=1, batch_size=2, device="cpu")
    first = list(islice(morse.batches(words, config), 3))
    second = morse.batches(words, config)
    second.restore({"seed": 0, "number": 2})
    assert_close(next(iter(second)), first[2], rtol=0, atol=0)


def test_another_voice_moves_bands_and_leaves_time_alone():
    frames = torch.zeros(1, 5, 40)
    frames[0, 2, 20] = 1
    moved = augment_log_mel(frames, seeded_generator(0), vtlp=0.3, eq=0.0, spec_augment=0)
    assert (moved.sum(2) != 0).tolist() == [[False, False, True, False, False]]
    assert int(moved[0, 2].argmax()) != 20


def test_hidden_bands_and_moments_are_at_the_mean():
    frames = torch.randn(1, 60, 40) + 3
    hidden = augment_log_mel(frames, seeded_generator(3), vtlp=0.0, eq=0.0, spec_augment=2)
    changed = hidden != frames
    assert changed.any()
    assert_close(hidden[changed], frames.mean().expand(int(changed.sum())))


@given(st.text("ab c", min_size=1, max_size=9), st.text("ab c", max_size=9))
def test_error_rates_are_those_of_jiwer(reference, answer):
    words = reference.split(), answer.split()
    if words[0]:
        assert_close(error_rate([words[1]], [words[0]]), jiwer.wer(reference, answer))
    tight = reference.replace(" ", ""), answer.replace(" ", "")
    if tight[0]:
        assert_close(error_rate([tight[1]], [tight[0]]), jiwer.cer(*tight))


@given(st.text("abc", max_size=6), st.text("abc", max_size=6), st.text("abc", max_size=6))
def test_edits_are_a_distance(a, b, c):
    assert edit_distance(a, b) == edit_distance(b, a)
    assert (edit_distance(a, b) == 0) == (a == b)
    assert edit_distance(a, c) <= edit_distance(a, b) + edit_distance(b, c)


SMALL = ["steps=2", "batch_size=2", "layers=1", "dim=16", "heads=2", "device=cpu"]


@pytest.mark.parametrize("name", ["morse", "speech"])
def test_a_run_is_scored_and_opened_again(recordings, tmp_path, name):
    settings = [*SMALL, "valid_size=2", "test_size=4", "max_letters=4"]
    if name == "speech":
        settings = [*SMALL, f"folder={recordings}", "data.sample_rate=8000", "data.n_mels=40"]
    outcome = runs.fit(runs.override_settings(recipe(name), settings), tmp_path / "run")
    run = load_run(tmp_path / "run")
    evaluate = run.recipe.data.evaluator(run.tokenizer, "test")
    assert evaluate(run.model)["error"] == outcome.scores["error"]
    transcripts = transcribe_batch(run.model, run.tokenizer, evaluate.audio)
    assert len(transcripts) == (4 if name == "morse" else 1)
    assert not torch.equal(run.model.standardise.mean, torch.zeros(40))  # it was estimated


# ---- own recordings


def source(recordings):
    return SpeechManifest(
        *(recordings / f"{split}.tsv" for split in ("train", "valid", "test")), rate=8000
    )


WORDS = CharTokenizer.train(["abc"])


def test_recordings_without_augmentation_are_the_files(recordings):
    manifest = source(recordings)
    batches = speech_batches(manifest, WORDS, mels=20, batch_size=3, seed=1)
    window = list(islice(batches, SORT_WINDOW))
    texts = [entry.text for entry in manifest.entries["train"]]
    labels = [
        WORDS.decode(row[:n].tolist())
        for batch in window
        for row, n in zip(batch["target"], batch["target_lengths"], strict=True)
    ]
    assert sorted(labels) == sorted(texts * (3 * SORT_WINDOW // len(texts)))
    assert all(batch["frames"].shape[::2] == (3, 20) for batch in window)


def test_augmented_batches_depend_on_their_number_alone(recordings):
    options = {
        "mels": 20, "batch_size": 2, "speeds": (0.9, 1.0, 1.1), "min_snr": 10.0,
        "augmentation": SpeechAugmentation(spec_augment=1, reverb=0.3, gain_jitter=0.2),
    }  # fmt: skip
    first = list(islice(speech_batches(source(recordings), WORDS, **options), 3))
    second = speech_batches(source(recordings), WORDS, **options)
    second.restore({"seed": 0, "number": 2})
    assert_close(next(iter(second)), first[2], rtol=0, atol=0)


def test_speed_perturbation_changes_length_and_pitch(recordings):
    slow, fast = (
        next(iter(speech_batches(source(recordings), WORDS, mels=40, batch_size=6, speeds=(s,))))
        for s in (0.8, 1.25)
    )
    frames = [int(batch["frames_lengths"].max()) - 98 for batch in (slow, fast)]
    assert frames[0] / frames[1] == pytest.approx(1.25 / 0.8, rel=0.05)
    peaks = [batch["frames"].exp().mean((0, 1)).argmax() for batch in (slow, fast)]
    assert peaks[1] > peaks[0]


@pytest.mark.parametrize("rate", [8000, 11025])
def test_frames_from_the_cache_are_those_of_inference(recordings, rate):
    manifest = SpeechManifest(*(recordings / f"{s}.tsv" for s in SPLITS), rate=rate)
    encode = speech_preprocessor(WORDS, mels=20, dither=0.0)
    expected = {x.text: encode(x)["frames"] for x in map(manifest.read, manifest.entries["train"])}
    batch = next(iter(speech_batches(manifest, WORDS, mels=20, batch_size=6)))
    rows = (batch[name] for name in ("frames", "frames_lengths", "target"))
    for row, size, target in zip(*rows, strict=True):
        frames = expected[WORDS.decode([n for n in target.tolist() if n != WORDS.pad_id])]
        assert len(frames) == size
        assert_close(row[:size], frames, rtol=0, atol=0.01)  # float16


@pytest.mark.parametrize("snr", [0.0, 10.0, 20.0])
def test_noise_changes_the_frames_as_noise_in_the_wave_would(recordings, monkeypatch, snr):
    monkeypatch.setattr(speech_module, "MAX_SNR", snr)
    monkeypatch.setattr(speech_module, "CLEAN_FRACTION", 0.0)
    options = {"mels": 20, "batch_size": 6, "seed": 4}
    clean, noisy = (
        next(iter(speech_batches(source(recordings), WORDS, **options, min_snr=level)))["frames"]
        for level in (None, snr)
    )
    examples = [source(recordings).read(x) for x in source(recordings).entries["train"]]
    pairs = [(x.wave, add_white_noise(x, snr).wave) for x in examples]
    before, after = (
        torch.cat([log_mel(pair[n] / pair[0].abs().max(), 8000, n_mels=20) for pair in pairs])
        for n in (0, 1)
    )
    loud, soft = (lambda x: x > 3), (lambda x: (x > -10) & (x < 3))  # tones, and what is around
    expected, found = (after - before), (noisy - clean)
    assert_close(found[soft(clean)].mean(), expected[soft(before)].mean(), rtol=0.1, atol=0)
    # the phases of tone and noise decide whether they add up or cancel
    assert_close(found[loud(clean)].std(), expected[loud(before)].std(), rtol=0.4, atol=0)
    assert_close(noisy[:, -90:], clean[:, -90:])  # none in the padding


def test_frames_are_computed_once_for_a_run_and_its_resumption(recordings, tmp_path, monkeypatch):
    data, settings = SpeechTask(folder=str(recordings), sample_rate=8000), recipe("speech").train
    settings = replace(settings, device="cpu", batch_size=3)
    tokenizer = data.tokenizer(0)
    cache = EncodedCache(tmp_path / "cache")
    whole = data.cached_batches(tokenizer, settings, cache)
    batches = list(islice(whole, 4))
    monkeypatch.setattr(SpeechManifest, "read", None)
    resumed = data.cached_batches(tokenizer, settings, cache)
    resumed.restore({"seed": settings.seed, "number": 2})
    assert_close(next(iter(resumed)), batches[2], rtol=0, atol=0)
    monkeypatch.undo()
    soundfile.write(recordings / "train0.flac", tone("abc"), 8000)
    other = data.cached_batches(tokenizer, settings, cache)
    changed = zip(islice(other, 4), batches, strict=True)
    assert any(x["frames"].shape != y["frames"].shape for x, y in changed)


def test_a_second_view_is_augmented_independently(recordings):
    batch = next(
        iter(
            speech_batches(
                source(recordings), WORDS, mels=20, batch_size=2, second_view=True,
                augmentation=SpeechAugmentation(),
            )
        )
    )  # fmt: skip
    assert batch["frames"].shape == batch["frames_again"].shape
    assert not torch.allclose(batch["frames"], batch["frames_again"])


@pytest.mark.parametrize("kind", ["characters", "words", "bpe"])
def test_units_of_transcripts(recordings, kind):
    data = SpeechTask(folder=str(recordings), sample_rate=8000, tokenizer_type=kind, vocab_size=300)
    words = data.tokenizer(0)
    assert words.decode(words.encode("cab")) == "cab"


@pytest.mark.parametrize("kind", ["words", "bpe", "unigram"])
@pytest.mark.parametrize("texts", [["seven", "three"], ["seven three", "three seven"], ["7", "3"]])
def test_words_of_a_transcript_are_not_joined(tmp_path, kind, texts):
    """A word has the same labels wherever it stands, so that those of two words are two words."""
    for n in range(40):
        soundfile.write(tmp_path / f"{n}.wav", tone("ab"), 8000)
    lines = "".join(f"{n}.wav\t{texts[n % 2]}\n" for n in range(40))
    (tmp_path / "manifest.tsv").write_text(lines)
    data = SpeechTask(folder=str(tmp_path), sample_rate=8000, tokenizer_type=kind, vocab_size=300)
    data.tokenizer(0).save(tmp_path)
    words = Tokenizer.load(tmp_path)
    one, two = " ".join(texts).split()[:2]
    joined = [label_batch([word], words)["target"][0].tolist() for word in (one, two, one)]
    assert words.decode(sum(joined, [])).strip() == f"{one} {two} {one}"
    assert sum(joined, []) == label_batch([f"{one} {two} {one}"], words)["target"][0].tolist()
    config = train.TrainConfig(steps=1, batch_size=2, device="cpu")
    batch = next(iter(data.batches(words, config)))
    trained = [
        row[:n].tolist() for row, n in zip(batch["target"], batch["target_lengths"], strict=True)
    ]
    assert all(row in [words.encode_input(text) for text in texts] for row in trained)


def test_a_script_without_spaces_gets_none():
    assert normalize_text("你好", ("leading_space",)) == "你好"
    assert normalize_text("", ("leading_space",)) == ""
    assert normalize_text(" a b", ("leading_space",)) == " a b"


def test_one_manifest_is_split_by_the_names_of_the_files(recordings):
    lines = [(recordings / f"{split}.tsv").read_text() for split in ("train", "valid", "test")]
    for split in ("train", "valid", "test"):
        (recordings / f"{split}.tsv").unlink()
    (recordings / "manifest.tsv").write_text("".join(lines))
    entries = SpeechTask(folder=str(recordings), sample_rate=8000).source().entries
    assert sum(map(len, entries.values())) == 9


@pytest.mark.parametrize("missing", ["valid", "test"])
def test_a_split_without_a_manifest_is_taken_from_train(recordings, missing):
    """Its recordings are those of the hash; the others of `train`, whatever their hash, stay."""
    rows = [(recordings / f"{split}.tsv").read_text() for split in ("train", missing)]
    for n in range(60):
        soundfile.write(recordings / f"more{n}.wav", tone("ab"), 8000)
        rows.append(f"more{n}.wav\tab\n")
    (recordings / f"{missing}.tsv").unlink()
    (recordings / "train.tsv").write_text("".join(rows))
    given = SpeechTask(folder=str(recordings), sample_rate=8000)
    (other,) = {"valid", "test"} - {missing}
    named = replace(given, train="train.tsv", **{other: f"{other}.tsv"})
    for data in (given, named):
        entries = data.source().entries
        assert all(hash_split(x.path.name.encode()) == missing for x in entries[missing])
        assert entries[missing]
        assert len(entries["train"]) + len(entries[missing]) == len("".join(rows).splitlines())
        assert [x.path.stem for x in entries[other]] == [
            f"{other}{n}" for n in range(len(entries[other]))
        ]
    proposed = propose("speech", [recordings])
    assert f"become {missing}, by a hash" in proposed.comments["data.folder"]


def test_a_run_remembers_the_lowest_rate_of_its_recordings(recordings):
    data = SpeechTask(folder=str(recordings), sample_rate=16000)
    assert (data.trained_rate, data.fit(0).trained_rate) == (16000, 8000)
    assert replace(data, sample_rate=4000).fit(0).lowest_rate == 4000
    rows = (recordings / "train.tsv").read_text()
    for n in range(30):  # one of a low rate among many does not make it known
        soundfile.write(recordings / f"wide{n}.wav", tone("ab", 16000), 16000)
    names = [f"wide{n}.wav\tab\n" for n in range(30)]
    (recordings / "wide.tsv").write_text("".join([*names, rows.splitlines(keepends=True)[0]]))
    wide = replace(data, train="wide.tsv", valid="valid.tsv", test="test.tsv")
    assert wide.fit(0).lowest_rate == 16000


@pytest.mark.slow
def test_own_recordings_are_learnt(tmp_path):
    rng = Random(0)
    for split, size in (("train", 60), ("valid", 5), ("test", 20)):
        texts = ["".join(rng.choices("abc", k=rng.randint(1, 5))) for _ in range(size)]
        for n, text in enumerate(texts):
            soundfile.write(tmp_path / f"{split}{n}.wav", tone(text), 8000)
        lines = [f"{split}{n}.wav\t{text}\n" for n, text in enumerate(texts)]
        (tmp_path / f"{split}.tsv").write_text("".join(lines))
    settings = [
        f"folder={tmp_path}", "data.sample_rate=8000", "data.n_mels=40", "steps=300",
        "batch_size=8", "layers=2", "dim=64", "dropout=0", "lr=3e-3", "warmup=30", "chunk=1",
        "left_chunks=64", "cmvn_depth=none", "online_cmvn=false", "device=cpu", "vtlp=0.05",
        "eq=0", "spec_augment=0", "reverb=0.1", "evaluate_every=300", "save_every=300",
    ]  # fmt: skip
    outcome = runs.fit(runs.override_settings(recipe("speech"), settings), tmp_path / "run")
    assert outcome.scores["error"] < 0.3


@pytest.mark.usefixtures("users_view")
def test_errors_of_recordings_name_the_setting(recordings):
    with pytest.raises(FileError, match="folder: needs a folder with a manifest, got none"):
        SpeechTask().source()
    with pytest.raises(ConfigError, match="speeds: need one or more above 0"):
        SpeechTask(speeds=())
    with pytest.raises(ConfigError, match="gain_jitter: needs 0 to 1, got 2"):
        SpeechAugmentation(gain_jitter=2)
    data = SpeechTask(folder=str(recordings), sample_rate=8000)
    with pytest.raises(ConfigError, match="online_cmvn: needs to be False for a model with"):
        data.resolve(replace(recipe("speech").model, cmvn_depth=None), WORDS)
    with pytest.raises(FileError, match="got none: 9 × longer than 0.1 seconds"):
        replace(data, max_seconds=0.1).tokenizer(0)
    (recordings / "train.tsv").write_text(f"train0.flac\t{'abc' * 40}\n")
    with pytest.raises(FileError, match=r"train on, got none: too short for its text"):
        speech_batches(source(recordings), WORDS, mels=20, batch_size=1)


def test_a_recording_too_short_for_its_text_is_skipped_and_counted(recordings):
    for split in ("train", "valid"):
        with (recordings / f"{split}.tsv").open("a") as manifest:
            manifest.write(f"{split}0.flac\t{'abc' * 40}\n")
    data = SpeechTask(folder=str(recordings), sample_rate=8000)
    (warning,) = data.data_warnings()
    assert warning.startswith("loaded 9, skipped 2\n  2 × too short for its text: ")
    tokenizer = data.tokenizer(0)
    batches = iter(data.batches(tokenizer, recipe("speech").train))
    assert max(next(batches)["target"].shape[1] for _ in range(4)) <= 3
    assert len(data.evaluator(tokenizer, "valid").references) == 2
    assert len(list(data.contents().examples)) == 9


@pytest.mark.usefixtures("users_view")
def test_errors_of_morse_and_error_rates():
    with pytest.raises(
        ConfigError, match="held_out_wpm: needs to leave some of 15 to 30 wpm, got all"
    ):
        Morse(wpm=(15, 30), held_out_wpm=((10, 40),))
    with pytest.raises(ShapeError, match="answers: needs one for each of 1 references"):
        error_rate([], ["a"])
