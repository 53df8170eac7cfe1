"""A run on files, in Python: what the command line answers, and its errors."""

import dataclasses
import inspect
import wave

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import regard as rg
from regard.cli import app
from regard.data import Glyphs, Morse
from regard.errors import ConfigError, FileError


@pytest.fixture
def pictures(tmp_path):
    """Two glyphs as files."""
    files = []
    for n, glyph in zip(range(2), Glyphs("XLT7", size=16).examples("test", 0), strict=False):
        files.append(tmp_path / f"{n}.png")
        Image.fromarray((glyph.image[0].numpy() * 255).astype("uint8")).save(files[-1])
    return files


@pytest.fixture
def sounds(tmp_path):
    """Two texts in Morse code, and their files."""
    files, texts = [], []
    spoken = Morse(letters=(2, 2), wpm=(20, 20), snr=(20, 20), alphabet="CQYL").examples("test", 0)
    for n, sound in zip(range(2), spoken, strict=False):
        files.append(tmp_path / f"{n}.wav")
        texts.append(sound.text)
        with wave.open(str(files[-1]), "wb") as file:
            file.setparams((1, 2, sound.rate, 0, "NONE", ""))
            file.writeframes((sound.wave * 20000).to(torch.int16).numpy().tobytes())
    return files, texts


def test_classes_are_those_of_the_command(pictures):
    result = CliRunner().invoke(app, ["classify", "glyphs", *map(str, pictures), "--top", "2"])
    rows = [line.split("\t")[1:] for line in result.stdout.splitlines()]
    found = rg.load("glyphs", device="cpu").classify(pictures, top=2)
    assert [[name, f"{chance:.4f}"] for row in found for name, chance in row] == rows
    assert rg.load("glyphs", device="cpu").classify(pictures[0])[0] == found[0][:1]


def test_transcripts_do_not_depend_on_earlier_audio(sounds):
    files, texts = sounds
    run = rg.load("morse", device="cpu")
    assert run.transcribe(files) == texts
    assert run.transcribe(files[::-1], beam_width=4) == texts[::-1]
    assert run.transcribe(str(files[1])) == texts[1:]


def test_what_cannot_be_is_reported(pictures, tmp_path):
    with pytest.raises(ConfigError, match="run: needs a model that can classify, got a Recogniser"):
        rg.load("morse", device="cpu").classify(pictures)
    with pytest.raises(ConfigError, match="top: needs 1 or more, got 0"):
        rg.load("glyphs", device="cpu").classify(pictures, top=0)
    with pytest.raises(ConfigError, match="run: needs a model that can transcribe"):
        rg.load("glyphs", device="cpu").transcribe([tmp_path / "no.wav"])
    with pytest.raises(FileError, match=r"no\.wav: needs to be a sound file, got no such file"):
        rg.load("morse", device="cpu").transcribe([tmp_path / "no.wav"])


@pytest.mark.parametrize("name", ["stdlib", "glyphs", "morse"])
def test_keywords_of_a_verb_are_options_of_its_task_with_their_defaults(name):
    task = rg.tasks.recipe(name).data
    options = {x.name: x.default for x in dataclasses.fields(task.Options)}
    keywords = {
        name: x.default
        for name, x in inspect.signature(getattr(rg.Run, task.verb)).parameters.items()
        if x.kind is x.KEYWORD_ONLY and name not in ("device", "sampling")
    }
    assert keywords
    assert keywords == {name: options[name] for name in keywords}
