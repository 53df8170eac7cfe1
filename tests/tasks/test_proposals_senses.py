"""What is proposed for images and spoken words, and that it learns."""

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image

import regard as rg
from regard.errors import ConfigError
from regard.runs import fit, override_settings
from regard.tasks.proposals.kinds import propose
from tests.tasks.test_baselines_senses import tones


@pytest.fixture
def words(tmp_path):
    """Recordings of three words with a manifest."""
    lines = []
    for n, example in enumerate(
        tones({"up": (0.2, 0.6), "down": (0.6, 0.2), "low": (0.2, 0.2)}, 90)
    ):
        soundfile.write(tmp_path / f"{n}.wav", 0.3 * example.wave.numpy(), 8000)
        lines.append(f"{n}.wav\t{example.text}\n")
    (tmp_path / "manifest.tsv").write_text("".join(lines))
    return tmp_path


def test_single_words_are_told_by_a_model_of_whole_recordings(words):
    proposal = propose("speech", [words])
    assert type(proposal.recipe.model).__name__ == "WordRecogniserConfig"
    settings = ["device=cpu", "steps=60", "warmup=6", "evaluate_every=30", "batch_size=16"]
    recipe = override_settings(proposal.recipe, settings)
    fit(recipe, words / "run", skip=["report"])
    run = rg.load(words / "run", device="cpu")
    files = [words / f"{n}.wav" for n in range(30)]
    want = ["up", "down", "low"] * 10
    got = run.transcribe(files)
    assert sum(a == b for a, b in zip(got, want, strict=True)) > 25
    assert run.result["baseline"]["name"] == "kernel machine on log-mel statistics"
    wave, rate = soundfile.read(files[1], dtype="float32")
    job = rg.tasks.TranscribeJob(run)
    chunks = list(job.stream(torch.from_numpy(wave).split(500), rate=rate))
    assert "".join(chunk.text for chunk in chunks).strip() == got[1]
    assert "waits for the end" in job.summary()


def test_a_model_of_single_words_is_refused_for_other_labels(words):
    recipe = propose("speech", [words]).recipe
    data: Any = replace(cast("Any", recipe.data), tokenizer_type="characters")
    with pytest.raises(ConfigError, match="tokenizer_type: needs one label per transcript"):
        data.resolve(recipe.model, data.tokenizer(0))


def test_phrases_are_recognised_by_ctc(words):
    manifest = words / "manifest.tsv"
    manifest.write_text(manifest.read_text().replace("low", "go low"))
    assert type(propose("speech", [words]).recipe.model).__name__ == "RecogniserConfig"


@pytest.mark.parametrize("side", ["left", "top"])
def test_flips_are_proposed_where_mirror_images_keep_the_class(tmp_path, side):
    rng = np.random.default_rng(0)
    for n in range(160):
        pixels = rng.integers(0, 90, (16, 16), dtype=np.uint8)
        bright = pixels if side == "left" else pixels.T
        bright[:, slice(0, 8) if n % 2 else slice(8, 16)] += 60
        folder = tmp_path / ("one" if n % 2 else "other")
        folder.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{n}.png")
    proposal = propose("images", [tmp_path])
    data: Any = proposal.recipe.data
    assert data.flip == (side == "top")
    reason = proposal.comments["data.flip"]
    assert ("they keep the class" if side == "top" else "they may change the class") in reason
