"""Morse code is keyed and labelled exactly; recordings are read as they were written."""

import json
from itertools import groupby, islice

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data import Batches, CharTokenizer, Morse, SpeechManifest, speech_preprocessor
from regard.data.audio.speech_manifest import find_manifests
from regard.data.content.morse.channel import MORSE_CODE, key_text, keyed_tone
from regard.errors import ConfigError, FileError

words = st.lists(st.text("".join(MORSE_CODE), min_size=1, max_size=5), min_size=1, max_size=3)


def copied(down, dot):
    """The text of a key's movements, by their lengths."""
    runs = [(bool(on), round(len(list(run)) / dot)) for on, run in groupby(down)]
    signs = "".join({1: ".", 3: "-"}[n] if on else {1: "", 3: " ", 7: " / "}[n] for on, n in runs)
    letters = {code: letter for letter, code in MORSE_CODE.items()}
    return "".join(" " if sign == "/" else letters[sign] for sign in signs.split(" ") if sign)


def test_paris_is_fifty_dots_a_word():
    down, _ = key_text("PARIS PARIS", wpm=12, rate=1000)
    assert len(down) == 100 * (50 + 43)  # the last gap of seven is silence after the end


@given(words, st.floats(5, 40))
def test_what_is_keyed_can_be_copied(words, wpm):
    text = " ".join(words)
    down, ends = key_text(text, wpm, rate=8000)
    assert copied(down, 1.2 / wpm * 8000) == text
    assert len(ends) == len(text)
    assert ends[-1] == len(down)


@given(words, st.floats(5, 40))
def test_a_label_ends_where_its_last_tone_does(words, wpm):
    text = " ".join(words)
    down, ends = key_text(text, wpm, rate=8000)
    for character, end in zip(text, ends, strict=True):
        if character != " ":
            assert down[end - 1]
            assert end == len(down) or not down[end]


def test_the_tone_has_its_pitch_and_is_silent_while_the_key_is_up():
    wave = keyed_tone(np.repeat([True, False], 8000), pitch=500, rate=8000)
    assert np.abs(np.fft.rfft(wave[:8000])).argmax() == 500
    assert np.abs(wave[8100:]).max() == 0


def test_noise_is_as_loud_as_asked_for():
    quiet, loud = (
        next(Morse(snr=(db, db), fading=0, wpm=(20, 20)).examples("train", 0)) for db in (100, 0)
    )
    assert quiet.text == loud.text
    clean, noisy = quiet.wave.double(), loud.wave.double()
    scale = (clean @ noisy) / (clean @ clean)
    noise = (noisy - scale * clean).square().mean()
    assert abs(10 * torch.log10(0.5 * (scale / clean.abs().max()) ** 2 / noise)) < 0.5


def test_a_recording_depends_on_its_index_and_never_clips():
    morse = Morse(eval_size=5)
    whole = list(islice(morse.examples("train", 4), 6))
    for one, two in zip(whole[3:], morse.examples("train", 4, start=3), strict=False):
        assert one.text == two.text
        assert torch.equal(one.wave, two.wave)
    assert all(sound.wave.abs().max() <= 1 for sound in whole)
    assert len(list(morse.examples("test", 0))) == 5
    assert whole[0].text != next(morse.examples("test", 4)).text


def test_morse_makes_batches_for_a_recogniser():
    tokenizer = CharTokenizer.train(["".join(MORSE_CODE), " "])
    batches = Batches(
        Morse(letters=(2, 4)),
        speech_preprocessor(tokenizer, mels=8),
        split="train",
        batch_tokens=2000,
        sort_window=8,
    )
    batch = next(iter(batches))
    assert set(batch) == {"frames", "frames_lengths", "target", "target_lengths"}
    assert batch["frames"].shape[2] == 8


@pytest.fixture
def recorded(tmp_path):
    lines = []
    for i in range(6):
        kind = "flac" if i % 2 else "wav"
        soundfile.write(tmp_path / f"{i}.{kind}", np.full((400, 1 + i % 2), i / 8), 8000)
        lines.append(f"{i}.{kind}\tnumber {i}")
    (tmp_path / "all.tsv").write_text("\n".join(lines))
    entries = (dict(zip(("audio", "text"), line.split("\t"), strict=True)) for line in lines)
    (tmp_path / "all.jsonl").write_text("\n".join(map(json.dumps, entries)))
    return tmp_path


@pytest.mark.parametrize("manifest", ["all.tsv", "all.jsonl"])
def test_recordings_come_back(recorded, manifest):
    file = recorded / manifest
    speech = SpeechManifest(file, file, file, rate=8000)
    sounds = list(speech.examples("test", 0))
    assert [sound.text for sound in sounds] == [f"number {i}" for i in range(6)]
    for i, sound in enumerate(sounds):
        assert torch.allclose(sound.wave, torch.full((400,), i / 8), atol=1e-4)
    turns = [sound.text for sound in islice(speech.examples("train", 0), 12)]
    assert sorted(turns[:6]) == sorted(turns[6:]) == [f"number {i}" for i in range(6)]
    assert [s.text for s in islice(speech.examples("train", 0, 4), 8)] == turns[4:]


@pytest.mark.parametrize("layout", ["common_voice", "nemo", "ljspeech", "kaldi"])
def test_manifests_of_known_corpora(tmp_path, layout):
    texts = {f"u{i}": f"utterance {i}" for i in range(3)}
    folder = tmp_path / "wavs"
    folder.mkdir()
    for i, name in enumerate(texts):
        soundfile.write(folder / f"{name}.wav", np.full(800, 0.1), (8000, 16000)[i % 2])
    if layout == "common_voice":
        rows = [f"c\twavs/{name}.wav\t{text}" for name, text in texts.items()]
        (tmp_path / "manifest.tsv").write_text("\n".join(["client_id\tpath\tsentence", *rows]))
    elif layout == "nemo":
        rows = [
            {"audio_filepath": f"wavs/{n}.wav", "duration": 1, "text": t} for n, t in texts.items()
        ]
        (tmp_path / "manifest.jsonl").write_text("\n".join(map(json.dumps, rows)))
    elif layout == "ljspeech":
        rows = [f"{name}|{text}|{text}" for name, text in texts.items()]
        (tmp_path / "metadata.csv").write_text("\n".join(rows))
    else:
        wavs = [f"{name} wavs/{name}.wav" for name in texts]
        (tmp_path / "wav.scp").write_text(
            "\n".join([*wavs, "u9 sox u9.flac -t wav - |", "u8 x.wav"])
        )
        lines = [f"{name} {text}" for name, text in texts.items()]
        (tmp_path / "text").write_text("\n".join([*lines, "u9 no"]))
    speech = SpeechManifest(*find_manifests(tmp_path), rate=8000)
    entries = [entry for split in speech.entries.values() for entry in split]
    assert sorted(entry.text for entry in entries) == sorted(texts.values())
    assert {speech.read(entry).rate for entry in entries} == {8000}
    assert {len(speech.read(entry).wave) for entry in entries} == {800, 400}
    if layout == "kaldi":
        assert set(speech.report.reasons) == {"a command, which is not run", "no text"}


def test_every_bad_recording_is_counted(recorded):
    (recorded / "text.wav").write_text("no sound")
    soundfile.write(recorded / "fast.wav", np.zeros(400), 16000)  # resampled
    soundfile.write(recorded / "empty.wav", np.zeros(0), 8000)
    soundfile.write(recorded / "long.wav", np.zeros(25000), 8000)
    (recorded / "cut.wav").write_bytes((recorded / "long.wav").read_bytes()[:3000])
    with (recorded / "all.tsv").open("a") as file:
        file.write("\ngone.wav\tx\ntext.wav\tx\nfast.wav\tx\nempty.wav\tx\n0.wav\t \n0.wav\n")
        file.write("long.wav\tx\ncut.wav\tx\n")
    speech = SpeechManifest(recorded / "all.tsv", rate=8000, max_seconds=3)
    assert speech.report.loaded == 7
    assert set(speech.report.reasons) == {
        "no such file",
        "not an audio file (Format not recognised)",
        "a header and 0 samples",
        "truncated",
        "longer than 3 seconds",
        "no text",
        "1 column",
    }
    assert speech.report.locations["no such file"] == ["all.tsv:7"]
    with pytest.raises(FileError, match=r"all\.tsv:7: no such file"):
        SpeechManifest(recorded / "all.tsv", rate=8000, on_error="raise")


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize(
    ("text", "said"),
    [("a", "needs capitals"), ("A  B", "one space between"), ("", "one space between")],
)
def test_what_cannot_be_keyed_is_refused(text, said):
    with pytest.raises(ConfigError, match=said):
        key_text(text)


@pytest.mark.usefixtures("users_view")
def test_mistakes_with_sounds_are_reported_in_one_line():
    with pytest.raises(ConfigError, match="wpm: needs a lower and an upper limit, got 30 to 20"):
        Morse(wpm=(30, 20))
    with pytest.raises(ConfigError, match="pitch: needs to be below half of rate=1000, got 900"):
        Morse(rate=1000)
    with pytest.raises(ConfigError, match="fading: needs to be from 0 to less than 1"):
        Morse(fading=1)
