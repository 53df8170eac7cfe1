"""Sizes and steps by trials: successive halving within a time, on the valid split alone."""

from collections import Counter
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from regard import models, tasks
from regard.cli import app
from regard.runs import trials, tune
from regard.runs.trials import differences, make_variants, tune_proposal
from regard.tasks.base import Recipe
from regard.tasks.proposals.kinds import write_proposal
from regard.train import TrainConfig

CONFIGS = {
    "labels": models.classifier_tiny(vocab=9, classes=2),
    "pairs": models.translator_tiny(vocab=9),
    "recurrent pairs": models.recurrent_tiny(vocab=9),
    "text": models.language_tiny(vocab=9),
    "images": models.ResNetConfig(classes=2),
    "speech": models.recogniser_tiny(vocab=9),
}


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """Texts whose class is their first word, and a small classifier."""
    monkeypatch.setattr(trials, "MIN_STEPS", 8)
    words = ["red", "blue", "green", "one", "two"]
    lines = [f"{a} {b} {c},{a}" for a in words[:3] for b in words for c in words]
    (tmp_path / "train.csv").write_text("\n".join(["text,label", *lines * 2]))
    data = tasks.LabelsTask(train=str(tmp_path / "train.csv"), tokenizer_type="words")
    config = models.classifier_tiny(vocab=1, classes=1, dim=16, heads=2, layers=1)
    train = TrainConfig(steps=16, warmup=1, device="cpu", monitor="accuracy", batch_tokens=128)
    return Recipe(name="words", data=data, model=config, train=train)


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_kind_of_model_has_variants_of_other_sizes(recipe, kind):
    variants = make_variants(replace(recipe, model=CONFIGS[kind]))
    assert list(variants)[0] == "as proposed"
    counts = {
        name: sum(p.numel() for p in models.build(x.model).parameters())
        for name, x in variants.items()
    }
    assert counts["narrower"] < counts["as proposed"] < min(counts["wider"], counts["deeper"])
    assert counts["lower lr"] == counts["higher lr"] == counts["as proposed"]


def test_the_better_half_is_trained_for_longer_and_the_same_seed_chooses_the_same(recipe):
    first, second = tune(recipe, minutes=9), tune(recipe, minutes=9)
    assert [x[:3] for x in first.trials] == [x[:3] for x in second.trials]
    assert first.recipe == second.recipe
    counts = Counter(x.steps for x in first.trials)
    assert counts == {8: 7, 16: 4, 32: 2}
    chosen = [x for x in first.trials if x.name == first.name]
    best = max(x.score for x in chosen)
    assert first.recipe.train.steps == next(x.steps for x in chosen if x.score == best)
    changes = differences(recipe, first.variants[first.name])
    assert f"{first.name} ({changes})" in " ".join(first.lines()) or not changes


def test_the_test_split_is_not_read(recipe, monkeypatch):
    real = tasks.LabelsTask.evaluator

    def evaluator(task, tokenizer, split):
        assert split == "valid"
        return real(task, tokenizer, split)

    monkeypatch.setattr(tasks.LabelsTask, "evaluator", evaluator)
    assert tune(recipe, minutes=9).trials


def test_an_interruption_keeps_what_is_known(recipe):
    lines = []

    def stop(line):
        lines.append(line)
        if len(lines) == 8:
            raise KeyboardInterrupt

    tuned = tune(recipe, minutes=9, log=stop)
    assert len(tuned.trials) == 8
    first = tuned.trials[:7]
    assert tuned.name == max(first, key=lambda x: x.score).name
    assert tuned.recipe.train.steps == recipe.train.steps  # not tried
    assert lines[0].startswith("tried as proposed: accuracy 0.")


def test_a_variant_that_diverges_is_the_last(recipe, monkeypatch):
    monkeypatch.setattr(trials, "LEARNING_RATES", {"higher lr": 1e30})
    lines = []
    tuned = tune(recipe, minutes=9, log=lines.append)
    assert any(line.startswith("tried higher lr: accuracy nan") for line in lines)
    assert [x.name for x in tuned.trials].count("higher lr") == 1
    assert tuned.name != "higher lr"


def test_too_little_time_for_any_trial_says_so(recipe):
    lines = []
    tuned = tune(recipe, minutes=1e-4, log=lines.append)
    assert (tuned.recipe, tuned.trials) == (recipe, [])
    assert lines[0].startswith("minutes: needs about ")


def test_the_recipe_file_says_what_was_tried(recipe, tmp_path):
    out, file = tmp_path / "tuned.toml", recipe.data.train

    def improve(proposal):
        return tune_proposal(replace(proposal, recipe=recipe), 9)

    proposal = write_proposal("labels", [file], out, improve=improve)
    text = out.read_text()
    assert "# Tried in 9 min at most, by successive halving on the valid split of " in text
    assert "#   as proposed: accuracy 0." in text
    assert "#   wider (model.dim=24, model.heads=3): accuracy 0." in text
    assert f"\n# Chosen: {proposal.notes[-1].removeprefix('Chosen: ')}\n" in text
    assert tasks.recipe(str(out)).train.steps == proposal.recipe.train.steps


def test_without_time_the_file_is_that_of_a_proposal_without_trials(recipe, tmp_path):
    def run(name, *options):
        command = ["new", "labels", recipe.data.train, "-o", str(tmp_path / name), *options]
        done = CliRunner().invoke(app, [*command, "--force"])
        return done.output, (tmp_path / name).read_text().splitlines()

    _, plain = run("a.toml")
    output, lines = run("b.toml", "--minutes", "1e-4")
    assert "to compare anything on this machine, got fewer" in output
    a, b = ([x for x in y if "here" not in x] for y in (plain, lines))  # the measured speed
    assert [x.replace('"a"', '"b"') for x in a] == b
    assert "minutes: needs more than 0, got 0" in run("b.toml", "--minutes", "0")[0]
