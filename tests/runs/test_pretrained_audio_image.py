"""Pretrained audio and image models score as recorded, on data that was never trained on."""

from dataclasses import replace

import pytest
import torch

from regard.runs import load, load_run
from regard.runs.loading import PRETRAINED_FOLDER
from regard.tasks import error_rate, transcribe_batch


@pytest.mark.parametrize("name", ["glyphs", "morse"])
def test_their_recipes_are_the_ones_that_can_be_run(name):
    run = load(name, device="cpu")
    assert run.recipe.name == name
    assert run.result["step"] == run.recipe.train.steps
    assert run.recipe.train.device == "auto"
    assert not list((PRETRAINED_FOLDER / name).glob("*.jsonl"))


def test_glyphs_of_unseen_fonts_reach_the_recorded_accuracy():
    run = load("glyphs", device="cpu")
    found = replace(run.recipe.data, test_size=500).evaluator(None, "test")(run.model)
    assert abs(found["accuracy"] - run.result["test"]["accuracy"]) < 0.03


def test_morse_in_noise_is_read_at_speeds_that_were_never_trained_on():
    run = load("morse", device="cpu")
    data = run.recipe.data
    for wpm in data.held_out_bands:
        source = data.source(
            wpm=wpm, snr=(0, 0), held_out_wpm=(), radio_effects=False, eval_size=12
        )
        sounds = list(source.examples("test", 0))
        answers = transcribe_batch(run.model, run.tokenizer, sounds)
        assert error_rate(answers, [sound.text for sound in sounds]) < 0.05


def test_rounded_weights_are_still_those_of_the_run():
    weights = load_run(PRETRAINED_FOLDER / "glyphs").model.state_dict()
    floats = [value for value in weights.values() if value.is_floating_point()]
    assert all(torch.equal(value.half().float(), value) for value in floats)
