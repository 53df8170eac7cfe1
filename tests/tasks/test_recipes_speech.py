"""Recipes for sounds: batches made as one by one, scored on speeds and voices never heard."""

import math
import wave
from itertools import islice

import jiwer
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from regard import runs, tasks, train
from regard.data import AudioBatches, Morse, SpokenDigits, augment_log_mel, seeded_generator
from regard.data.audio.audio_batches import SORT_WINDOW, render_keyings
from regard.data.audio.digits import Recording, WavePlan, render_waves
from regard.data.split import Split
from regard.errors import ConfigError, FileError, ShapeError
from regard.runs import load_run
from regard.tasks import best_path, edit_distance, error_rate, recipe, transcribe_batch
from regard.tasks.recognition.speech import _digits
from regard.tasks import DigitsData, MorseData

PITCHES = [300 + 250 * digit for digit in range(10)]


@pytest.fixture
def takes(tmp_path):
    """Three speakers who whistle: each digit has its own pitch, each speaker a share of his own."""
    _digits.cache_clear()
    folder = tmp_path / "takes"
    folder.mkdir()
    for digit, pitch in enumerate(PITCHES):
        for share, speaker in ((1.0, "ann"), (1.03, "bob"), (0.97, "cy")):
            for number in (0, 5, 6):
                time = np.arange(800 + 40 * number) / 8000
                tone = 8000 * np.sin(2 * np.pi * pitch * share * time)
                with wave.open(str(folder / f"{digit}_{speaker}_{number}.wav"), "wb") as file:
                    file.setparams((1, 2, 8000, 0, "NONE", ""))
                    file.writeframes(tone.astype("<i2").tobytes())
    return folder


def test_a_run_whose_data_is_not_there_leaves_nothing_behind(tmp_path):
    told = runs.override_settings(
        tasks.recipe("digits"), [f"folder={tmp_path / 'none'}", "device=cpu"]
    )
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "notes.txt").write_text("mine")
    for folder in (tmp_path / "run", kept):
        with pytest.raises(FileError, match=r"none: needs files such as 7_lucas_3\.wav, got none"):
            runs.start_run(told, folder)
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


def test_spared_speeds_are_tested_and_never_trained_on():
    told = MorseData(test_size=4, valid_size=2)
    trained = [told.source().draw_keying(f"train/0/{n}").wpm for n in range(500)]
    assert not any(low <= wpm <= high for wpm in trained for low, high in told.held_out_bands)
    assert min(trained) < 12
    assert max(trained) > 38
    assert len(told.evaluator(told.tokenizer(0), "test").audio) == 4


def test_sounds_come_once_each_with_others_of_like_length():
    batches = AudioBatches(
        float, lambda plan: (plan * 7) % 48, lambda plans, number: {"x": torch.tensor(plans)},
        batch_size=3,
    )  # fmt: skip
    window = [batch["x"] for batch in islice(batches, SORT_WINDOW)]
    assert sorted(torch.cat(window).tolist()) == list(range(3 * SORT_WINDOW))
    assert all(float(((x * 7) % 48).diff().max()) == 1 for x in window)


def test_a_batch_depends_on_its_number_alone():
    told, words = MorseData(), MorseData().tokenizer(0)
    config = train.TrainConfig(steps=1, batch_tokens=2, device="cpu")
    first = list(islice(told.batches(words, config), 3))
    second = told.batches(words, config)
    second.restore({"seed": 0, "number": 2})
    assert_close(next(iter(second)), first[2], rtol=0, atol=0)


def test_digits_are_joined_sample_by_sample():
    samples = torch.arange(1.0, 9.0)
    takes = Recording(1, "a", 0, 0, 4), Recording(2, "a", 0, 4, 4)
    plan = WavePlan("12", takes, (2, 1, 1), (1.0, 1.0), 2.0, math.inf)
    waves, lengths = render_waves([plan], samples, seeded_generator(0))
    assert waves.tolist() == [[0, 0, 2, 4, 6, 0, 10, 12, 14, 0]]
    assert lengths.tolist() == [10]


def test_a_take_at_twice_the_speed_has_half_the_samples():
    plan = WavePlan("1", (Recording(1, "a", 0, 0, 9),), (0, 0), (2.0,), 1.0, math.inf)
    waves, _ = render_waves([plan], torch.arange(9.0), seeded_generator(0))
    assert waves.tolist() == [[0, 2, 4, 6]]


def test_noise_stands_below_the_voice_by_the_asked_decibels():
    samples = torch.sin(torch.arange(8000.0))
    takes = (Recording(1, "a", 0, 0, 8000),)
    said = [
        render_waves(
            [WavePlan("1", takes, (0, 4000), (1.0,), 1.0, snr)], samples, seeded_generator(0)
        )[0][0]
        for snr in (math.inf, 10.0)
    ]
    noise = said[1] - said[0]
    power = float(said[0][:7999].square().mean() / noise.square().mean())
    assert abs(10 * math.log10(power) - 10) < 0.3


def test_the_held_speaker_is_heard_in_the_test_alone(takes):
    source = SpokenDigits(takes, held_out_speakers=("bob",))
    parts: tuple[tuple[Split, set[str], set[int]], ...] = (
        ("train", {"ann", "cy"}, {5, 6}),
        ("valid", {"ann", "cy"}, {0}),
        ("test", {"bob"}, {0, 5, 6}),
    )
    for split, speakers, numbers in parts:
        said = [take for n in range(60) for take in source.draw_plan(f"x{n}", split).recordings]
        assert {take.speaker for take in said} == speakers
        assert {take.number for take in said} == numbers


def test_only_training_is_changed_in_speed(takes):
    source = SpokenDigits(takes, held_out_speakers=("bob",))
    assert set(source.draw_plan("a", "test").speeds) == {1.0}
    speeds = [s for n in range(50) for s in source.draw_plan(str(n), "train").speeds]
    assert 0.74 < min(speeds) < 0.85 < 1.2 < max(speeds) < 1.34


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


def test_nothing_of_a_voice_is_hidden_unless_asked_for():
    """A six without its s is an eight."""
    assert recipe("digits").data.masks == 0


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


def test_what_lies_behind_a_sound_is_not_read():
    path = torch.nn.functional.one_hot(torch.tensor([[1, 0, 2, 2, 1]]), 3).float().log()
    assert best_path(path, torch.tensor([3])) == [[1, 2]]


@pytest.mark.parametrize("name", ["morse", "digits"])
def test_a_run_is_scored_and_opened_again(takes, tmp_path, name):
    settings = ["steps=2", "tokens=2", "valid=2", "test=4", "layers=1", "dim=16", "device=cpu"]
    settings += [f"folder={takes}", "held=bob"] if name == "digits" else ["longest=4"]
    outcome = runs.start_run(runs.override_settings(recipe(name), settings), tmp_path / "run")
    run = load_run(tmp_path / "run")
    scores = run.recipe.data.scores(run.tokenizer, "test")
    assert scores(run.model)["error"] == outcome.scores["error"]
    assert len(transcribe_batch(run.model, run.tokenizer, scores.sounds)) == 4
    assert not torch.equal(run.model.standardise.mean, torch.zeros(40))  # it was measured


@pytest.mark.slow
def test_whistled_digits_of_a_new_speaker_are_heard(takes, tmp_path):
    settings = [f"folder={takes}", "held=bob", "steps=300", "tokens=16", "lr=3e-3", "warmup=30"]
    settings += ["layers=2", "dim=64", "dropout=0", "agree=0", "valid=8", "test=60", "device=cpu"]
    settings += ["warp=0", "colour=0", "masks=0"]
    outcome = runs.start_run(runs.override_settings(recipe("digits"), settings), tmp_path / "run")
    assert outcome.scores["error"] < 0.5


@pytest.mark.usefixtures("users_view")
def test_mistakes_with_voices_are_told_in_one_line(takes, tmp_path):
    with pytest.raises(FileError, match="nowhere: needs files such as 7_lucas_3.wav, got none"):
        DigitsData(folder="nowhere").source()
    with pytest.raises(ConfigError, match="held: needs some of ann, bob, cy, got dan"):
        SpokenDigits(takes, held_out_speakers=("dan",))
    with pytest.raises(
        ConfigError, match="held: needs to leave a speaker of ann, bob, cy, got all"
    ):
        SpokenDigits(takes, held_out_speakers=("ann", "bob", "cy"))
    with pytest.raises(ConfigError, match="split: needs one that has takes, got test"):
        SpokenDigits(takes).draw_plan("a", "test")
    with pytest.raises(ConfigError, match="speed: needs a lower and an upper limit"):
        SpokenDigits(takes, speed=(2.0, 1.0))
    (takes / "1_ann_9.wav").write_bytes(b"RIFF")
    with pytest.raises(FileError, match=r"1_ann_9.wav: needs to be a WAV file"):
        SpokenDigits(takes)
    with pytest.raises(ConfigError, match="held_out_wpm: needs to leave some of 15 to 30 wpm, got all"):
        Morse(wpm=(15, 30), held_out_wpm=((10, 40),))
    with pytest.raises(ShapeError, match="answers: needs one for each of 1 references"):
        error_rate([], ["a"])
