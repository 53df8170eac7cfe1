"""Digit strings as waves, the splits by speaker, and a run of the recipe."""

import math
import wave

import numpy as np
import pytest
import torch
from recordings import Recording, SpokenDigits, WavePlan, render_waves
from spoken_digits import _load, digits

from regard import runs
from regard.data import Split, seeded_generator
from regard.errors import ConfigError, FileError
from regard.runs import load_run

PITCHES = [300 + 250 * digit for digit in range(10)]


@pytest.fixture
def takes(tmp_path):
    """Three speakers who whistle: each digit has its own pitch, each speaker a share of his own."""
    _load.cache_clear()
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


def test_the_held_out_speaker_is_in_the_test_split_alone(takes):
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


SMALL = ["held_out_speakers=bob", "device=cpu"]


def test_a_run_is_scored_and_opened_again(takes, tmp_path):
    settings = [
        *SMALL, f"folder={takes}", "steps=2", "batch_size=2", "valid_size=2", "test_size=4",
        "layers=1", "dim=16",
    ]  # fmt: skip
    outcome = runs.fit(runs.override_settings(digits(), settings), tmp_path / "run")
    run = load_run(tmp_path / "run")
    evaluate = run.recipe.data.evaluator(run.tokenizer, "test")
    assert evaluate(run.model)["error"] == outcome.scores["error"]


@pytest.mark.slow
def test_whistled_digits_of_a_new_speaker_are_recognised(takes, tmp_path):
    settings = [
        *SMALL, f"folder={takes}", "steps=300", "batch_size=16", "lr=3e-3", "warmup=30",
        "layers=2", "dim=64", "dropout=0", "rdrop=0", "valid_size=8", "test_size=60", "vtlp=0",
        "eq=0",
    ]  # fmt: skip
    outcome = runs.fit(runs.override_settings(digits(), settings), tmp_path / "run")
    assert outcome.scores["error"] < 0.5


@pytest.mark.usefixtures("users_view")
def test_errors_name_the_argument(takes):
    with pytest.raises(FileError, match="nowhere: needs files such as 7_lucas_3.wav, got none"):
        SpokenDigits("nowhere")
    with pytest.raises(ConfigError, match="held_out_speakers: needs some of ann, bob, cy, got dan"):
        SpokenDigits(takes, held_out_speakers=("dan",))
    with pytest.raises(ConfigError, match="needs to leave one of ann, bob, cy, got all"):
        SpokenDigits(takes, held_out_speakers=("ann", "bob", "cy"))
    with pytest.raises(ConfigError, match="split: needs one that has recordings, got test"):
        SpokenDigits(takes).draw_plan("a", "test")
    with pytest.raises(ConfigError, match="speed: needs a lower and an upper limit"):
        SpokenDigits(takes, speed=(2.0, 1.0))
    (takes / "1_ann_9.wav").write_bytes(b"RIFF")
    with pytest.raises(FileError, match=r"1_ann_9.wav: needs to be a WAV file"):
        SpokenDigits(takes)
