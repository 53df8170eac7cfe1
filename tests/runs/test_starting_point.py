"""Trainings that start from a model of another task: its sizes, a fitted head, trials, low rank."""

import json
from typing import Any

import pytest
import torch
from runs.test_downloads import write_encoder
from torch.testing import assert_close

import regard as rg
from regard import runs, tasks
from regard.errors import ConfigError
from regard.nn.low_rank import LowRankLinear, add_low_rank, merge_low_rank, without_low_rank
from regard.runs.starting_point import adapt_recipe, open_source, suggest_source
from regard.tasks.proposals.kinds import propose

SETTINGS = ["device=cpu", "steps=8"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    write_encoder(folder)
    return folder


def labels(folder):
    rows = [f"the {word} {'cat ' * n},{word[-1]}\n" for n in range(30) for word in ("who", "where")]
    (folder / "a.csv").write_text("text,label\n" + "".join(rows))
    (folder / "labels.toml").write_text(
        'task = "labels"\n[data]\ntrain = "a.csv"\nvalid = "a.csv"\ntest = "a.csv"\n[model]\n'
        'type = "classifier"\nlayers = 1\ndim = 16\nheads = 2\npooling = "mean"\n'
        '[train]\nsteps = 500\nlr = 0.002\nmonitor = "accuracy"\n'
    )
    return tasks.recipe(str(folder / "labels.toml"))


def tags(folder):
    lines = [f"the O\n{word} {tag}\n\n" for word, tag in [("cats", "B-X"), ("sat", "O")] * 20]
    (folder / "a.conll").write_text("".join(lines))
    (folder / "tags.toml").write_text(
        'task = "tagging"\n[data]\ntrain = "a.conll"\nvalid = "a.conll"\ntest = "a.conll"\n'
        'word_split = "spaces"\n[model]\ntype = "classifier"\nlayers = 1\ndim = 16\nheads = 2\n'
        '[train]\nsteps = 500\nmonitor = "f1"\n'
    )
    return tasks.recipe(str(folder / "tags.toml"))


@pytest.mark.parametrize("make", [labels, tags])
def test_a_run_from_an_encoder_has_its_sizes_tokens_and_weights(make, encoder, tmp_path, capsys):
    out = tmp_path / "run"
    runs.fit(make(tmp_path), out, init_from=encoder, settings=[*SETTINGS, "lr=1e-30"], show=True)
    run, source = rg.load(out, device="cpu"), open_source(encoder).model
    assert run.model.config.dim == source.config.dim == 24
    assert run.model.config.max_positions == run.data.max_tokens == 40
    assert_close(run.model.encoder.state_dict(), source.encoder.state_dict())
    assert run.tokenizer.encode("the cats") == [4, 5, 7]
    scores = run.result["test"]
    assert scores["accuracy"] == 1.0  # of the head, which is fitted before the training
    shown = capsys.readouterr().out
    assert "tried as given: " in shown
    assert "the others are new, the head for its other classes" in shown


@pytest.mark.parametrize("make", [labels, tags])
def test_the_ngrams_of_a_recipe_are_mixed_in_with_the_encoder(make, encoder, tmp_path):
    recipe = runs.override_settings(make(tmp_path), ["ngrams=256"])
    settings = [*SETTINGS, "lr=1e-3", "steps=2", "evaluate_every=1"]
    runs.fit(recipe, tmp_path / "run", init_from=encoder, settings=settings)
    model: Any = rg.load(tmp_path / "run", device="cpu").model
    assert (model.config.dim, model.config.ngrams) == (24, 256)
    assert model.ngrams.weight.abs().sum() > 0
    assert model.mix[1] > 0  # fitted on the valid split


def test_pairs_start_from_a_translator_of_another_width(tmp_path, capsys):
    (tmp_path / "en-de.tsv").write_text("".join(f"{n} days\t{n} Tage\n" for n in range(99)))
    recipe = propose("pairs", [tmp_path / "en-de.tsv"]).recipe
    given = [*SETTINGS, "vocab_size=300", "lr=1e-30"]
    runs.fit(recipe, tmp_path / "a", settings=[*given, "heads=2", "dim=16"], skip=["report"])
    runs.fit(recipe, tmp_path / "b", settings=given, init_from=tmp_path / "a", show=True)
    before, after = (rg.load(tmp_path / x, device="cpu") for x in "ab")
    assert after.model.config == before.model.config
    assert_close(after.model.state_dict(), before.model.state_dict())
    assert "tried as given: bleu" in capsys.readouterr().out
    assert after.translate(["3 days"]) == before.translate(["3 days"])


def test_the_adaptation_is_chosen_by_trial_unless_it_is_given(encoder, tmp_path, capsys):
    recipe = labels(tmp_path)
    runs.fit(recipe, tmp_path / "a", init_from=encoder, settings=SETTINGS, show=True)
    shown = capsys.readouterr().out
    assert shown.count("tried all weights: accuracy ") == 1
    assert shown.count("tried low rank: accuracy ") == 1
    train = runs.read_recipe(tmp_path / "a").train
    assert train.steps == 8
    assert (train.lr, train.low_rank) in ((1e-4, 0), (1e-3, 8))
    given = [*SETTINGS, "low_rank=2", "train.lr=0.003"]
    runs.fit(recipe, tmp_path / "b", init_from=encoder, settings=given, show=True)
    train = runs.read_recipe(tmp_path / "b").train
    assert (train.lr, train.low_rank) == (0.003, 2)
    assert "all weights" not in capsys.readouterr().out


def test_a_low_rank_run_is_a_plain_run_and_resumes(encoder, tmp_path):
    recipe, settings = labels(tmp_path), [*SETTINGS, "low_rank=2", "lr=0.01", "save_every=4"]
    settings += ["evaluate_every=4", "final=last"]
    whole = runs.fit(recipe, tmp_path / "whole", init_from=encoder, settings=settings)
    assert whole.step == 8
    run, source = rg.load(tmp_path / "whole", device="cpu"), open_source(encoder).model
    names = set(run.model.state_dict())
    assert not any("low_rank" in name for name in names)
    state = run.model.state_dict()
    shared = {n: x for n, x in source.state_dict().items() if n in names}
    moved = {name for name, x in shared.items() if not torch.equal(x, state[name])}
    assert moved
    assert all(name.endswith(".weight") and ".blocks." in name for name in moved)
    # the same from a checkpoint, without the final weights
    final = {name: x.clone() for name, x in run.model.state_dict().items()}
    (tmp_path / "whole/model.safetensors").unlink()
    again = rg.load(tmp_path / "whole", device="cpu").model.state_dict()
    assert_close(again, final)
    outcome = runs.fit(tmp_path / "whole", settings=["steps=12"])
    assert (outcome.step, outcome.reason) == (12, "finished")
    assert set(rg.load(tmp_path / "whole", device="cpu").model.state_dict()) == names


def test_an_update_of_low_rank_merges_into_the_same_function():
    torch.manual_seed(0)
    model = rg.models.Classifier(rg.models.classifier_tiny(vocab=9, classes=3)).eval()
    tokens, before = torch.tensor([[1, 2, 3]]), dict(model.state_dict())
    want = model(tokens)
    add_low_rank(model, 4)
    assert torch.equal(model(tokens), want)  # U is 0
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, LowRankLinear):
                layer.low_rank_up.normal_()
    adapted = model(tokens)
    assert not torch.allclose(adapted, want, atol=1e-3)
    state = merge_low_rank(model.state_dict())
    plain = without_low_rank(model)
    assert set(state) == set(before) == set(plain.state_dict())
    assert_close(plain(tokens), adapted, atol=1e-5, rtol=1e-4)
    assert_close(dict(plain.state_dict()), state)


def test_long_texts_are_cut_to_the_positions_of_the_source(encoder, tmp_path):
    recipe = labels(tmp_path)
    file = tmp_path / "a.csv"
    file.write_text(file.read_text() + f"{'cat ' * 99}where,e\n")
    source = open_source(encoder)
    tokenizer = rg.data.Tokenizer.load(encoder)
    adapted = adapt_recipe(recipe, source, tokenizer)
    assert adapted.train.batch_tokens >= 40
    runs.fit(recipe, tmp_path / "run", init_from=encoder, settings=SETTINGS)
    assert len(rg.load(tmp_path / "run", device="cpu").label("cat " * 99)) == 1


def test_a_task_that_cannot_start_from_an_encoder_leaves_no_run(encoder, tmp_path):
    (tmp_path / "a.txt").write_text("the cat sat. " * 200)
    settings = [f"folder={tmp_path / 'a.txt'}", "split_by=tail", "device=cpu"]
    recipe = runs.override_settings(tasks.recipe("stdlib"), settings)
    with pytest.raises(ConfigError, match="init_from: needs a model with tensors of this one"):
        runs.fit(recipe, tmp_path / "run", init_from=encoder)
    assert not (tmp_path / "run").exists()


def test_a_language_model_starts_from_a_saved_one_of_another_width(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("the cat sat on the mat. " * 300)
    settings = [f"folder={tmp_path / 'a.txt'}", "split_by=tail", "length=16", "overlap=0"]
    settings += ["tokenizer_type=characters", "device=cpu", "layers=1", "heads=2", "kv_heads=2"]
    recipe = runs.override_settings(tasks.recipe("stdlib"), [*settings, "dim=16", "steps=2"])
    runs.fit(recipe, tmp_path / "source", skip=["report"])
    wide = runs.override_settings(recipe, ["dim=24"])
    runs.fit(wide, tmp_path / "run", init_from=tmp_path / "source", settings=["steps=3"], show=True)
    found = json.loads((tmp_path / "run/recipe.json").read_text())["recipe"]
    assert found["model"]["dim"] == 16
    assert found["data"]["eval_chars"] <= 100_000
    assert "tried low rank: loss " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("what is the name of the river {}", "regard train … --from minilm  # English"),
        ("quel est le nom du fleuve {}", ""),
    ],
)
def test_a_model_of_english_is_proposed_for_labels_of_english(tmp_path, text, line, monkeypatch):
    rows = [f"{text.format(n)},{n % 2}" for n in range(200)]
    (tmp_path / "texts.csv").write_text("\n".join(["text,label", *rows]))
    recipe = propose("labels", [tmp_path / "texts.csv"]).recipe
    monkeypatch.setattr("regard.runs.starting_point.downloaded", lambda name: tmp_path)
    assert suggest_source(recipe).partition(":")[0] == line
    monkeypatch.setattr("regard.runs.starting_point.downloaded", lambda name: None)
    assert suggest_source(recipe).startswith("regard get minilm && " if line else "")
