"""`rg.load`: what opens, which verbs it has, and that no verb moves the model."""

from dataclasses import replace

import pytest
import torch

import regard as rg
from regard.errors import ConfigError, FileError, LookError
from regard.runs import pretrained_names
from regard.tasks.pipeline import model_on

TASK_VERBS = {
    "glyphs": "classify",
    "morse": "transcribe",
    "phrases": "translate",
    "phrases-gru": "translate",
    "stdlib": "generate",
    "stories": "generate",
}
CALLS = {
    "translate": lambda run: run.translate(["a"], to=["de"]),
    "generate": lambda run: run.generate("a"),
    "transcribe": lambda run: run.transcribe("a.wav"),
    "classify": lambda run: run.classify("a.png"),
    "look": lambda run: run.look("a"),
    "evaluate": lambda run: run.evaluate(),
    "export": lambda run: run.export("a"),
    "quantize": lambda run: run.quantize("a"),
}


@pytest.mark.parametrize("name", pretrained_names())
def test_each_pretrained_model_has_the_verb_of_its_task_and_no_other(name):
    run = rg.load(name, device="cpu")
    assert set(run.verbs) & set(TASK_VERBS.values()) == {TASK_VERBS[name]}
    for verb in set(CALLS) - set(run.verbs):
        message = f"run: needs a model that can {verb}, got a .*; try {TASK_VERBS[name]}"
        with pytest.raises(ConfigError, match=message):
            CALLS[verb](run)


def test_every_verb_is_a_method_and_is_tried_here():
    verbs = {*TASK_VERBS.values(), "look", "evaluate", "export", "quantize"}
    assert set(CALLS) == verbs
    assert all(callable(getattr(rg.Run, verb)) for verb in verbs)


def test_a_saved_model_and_a_hugging_face_folder_can_be_looked_at(tmp_path):
    from transformers import GPT2Config, GPT2Model

    GPT2Model(GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=2)).save_pretrained(tmp_path)
    ours = rg.models.LanguageModel(rg.models.language_tiny(vocab=9))
    path = rg.models.save(ours, tmp_path / "ours")
    for place, sites in ((tmp_path, 1), (path, 2), (path.parent, 2)):
        run = rg.load(place)
        assert run.verbs == ["look"]
        assert len(run.look("3 1 4")) == sites
        with pytest.raises(ConfigError, match="run: needs a model that can generate, got a .*look"):
            run.generate("3")


def test_a_verb_with_another_device_runs_a_copy():
    model = torch.nn.Linear(2, 2)
    copy = model_on(model, "meta")
    assert copy.weight.device.type == "meta"
    assert model.weight.device.type == "cpu"
    assert model_on(model, None) is model_on(model, torch.device("cpu")) is model


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["phrases", "phrases-gru"])
def test_another_device_gives_the_same_translations_and_leaves_the_model(name):
    run = rg.load(name, device="cpu")
    texts = ["3 days", "March 5, 2024"]
    assert run.translate(texts, to=["de"], device="cuda") == run.translate(texts, to=["de"])
    assert {p.device.type for p in run.model.parameters()} == {"cpu"}


@pytest.mark.usefixtures("users_view")
def test_names_and_models_that_cannot_be_opened_are_reported(tmp_path):
    with pytest.raises(
        FileError, match="phrase: needs to be a run, a saved model or one of .* try"
    ):
        rg.load("phrase")
    with pytest.raises(FileError, match="got neither"):
        rg.load(tmp_path)
    run = rg.load("glyphs", device="cpu")
    with pytest.raises(LookError, match="reads tokens, got VisionTransformer"):
        replace(run, recipe=None).text_model  # noqa: B018
