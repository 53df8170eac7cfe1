"""Fine-tuning a run, freezing parameters, and what may change when a run is resumed."""

import json

import pytest
import torch

from regard import runs, tasks, train
from regard.errors import ConfigError
from regard.train.weights import load_matching_weights

SMALL = ["dim=16", "heads=2", "kv_heads=2", "layers=1", "ffn_dim=16", "length=16", "overlap=0"]
SMALL += ["tokenizer_type=characters", "batch_tokens=64", "warmup=1", "device=cpu"]
SMALL += ["evaluate_every=2", "save_every=2", "split_by=tail"]


def recipe(folder, *settings):
    file = folder / "a.txt"
    file.write_text("the quick brown fox jumps over the lazy dog. " * 60)
    return runs.override_settings(
        tasks.recipe("stdlib"), [*SMALL, f"folder={file}", "steps=4", *settings]
    )


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    folder = tmp_path_factory.mktemp("first")
    runs.fit(recipe(folder), folder / "run")
    return folder


def weights(folder):
    return {name: x.clone() for name, x in runs.load_run(folder).model.state_dict().items()}


def test_a_run_starts_from_the_weights_of_another(first, tmp_path):
    settings = ["lr=1e-30", "weight_decay=0"]
    runs.fit(recipe(tmp_path, *settings), tmp_path / "run", init_from=first / "run")
    for name, x in weights(tmp_path / "run").items():
        torch.testing.assert_close(x, weights(first / "run")[name])
    tokenizer = (tmp_path / "run/tokenizer.json").read_text()
    assert tokenizer == (first / "run/tokenizer.json").read_text()


def test_only_what_has_the_same_shape_is_copied(first, tmp_path):
    wide = recipe(tmp_path, "ffn_dim=24", "lr=1e-30")
    runs.fit(wide, tmp_path / "run", init_from=first / "run")
    new, old = weights(tmp_path / "run"), weights(first / "run")
    same = {name for name in new if new[name].shape == old[name].shape}
    assert 0 < len(same) < len(new)
    for name in same:
        torch.testing.assert_close(new[name], old[name])


def test_the_head_is_copied_for_the_same_classes_only(tmp_path, capsys):
    def labels(folder, *names):
        rows = [f"{'well' if n % 2 else 'ill'} done {n},{names[n % 2]}\n" for n in range(99)]
        (folder / "a.csv").write_text("text,label\n" + "".join(rows))
        (folder / "a.toml").write_text(
            'task = "labels"\n[data]\ntrain = "a.csv"\nvocab_size = 300\n[model]\n'
            'type = "classifier"\nlayers = 1\ndim = 16\nheads = 2\n[train]\nsteps = 2\n'
            'lr = 1e-30\nweight_decay = 0\ndevice = "cpu"\n'
        )
        return tasks.recipe(str(folder / "a.toml"))

    old = tmp_path / "old"
    runs.fit(labels(tmp_path, "bad", "good"), old)
    for names, is_copied in ((("bad", "good"), True), (("nein", "ja"), False)):
        run = tmp_path / names[0]
        other_start = runs.override_settings(labels(tmp_path, *names), ["seed=1"])
        runs.fit(other_start, run, init_from=old, show=True)
        before, after = weights(old), weights(run)
        kept = {name for name in before if torch.allclose(before[name], after[name])}
        assert ("head.weight" in kept) == is_copied
        assert kept >= {name for name in before if not name.startswith("head.")}
        assert ("the head for its other classes" in capsys.readouterr().out) != is_copied


def test_frozen_parameters_do_not_move(first, tmp_path):
    frozen = recipe(tmp_path, "freeze=decoder.*", "lr=0.1")
    runs.fit(frozen, tmp_path / "run", init_from=first / "run")
    new, old = weights(tmp_path / "run"), weights(first / "run")
    moved = {name for name in new if not torch.equal(new[name], old[name])}
    assert moved
    assert not any(name.startswith("decoder.") for name in moved)


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize(
    ("pattern", "message"),
    [("encodre.*", "freeze: needs a pattern of .*decoder"), ("*", "needs to leave parameters")],
)
def test_a_pattern_that_freezes_nothing_or_all_is_refused(pattern, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        runs.fit(recipe(tmp_path, f"freeze={pattern}"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_longer_training_goes_on_where_a_run_ended(first, tmp_path):
    runs.fit(recipe(tmp_path), tmp_path / "run")
    outcome = runs.fit(tmp_path / "run", settings=["steps=6"])
    assert outcome.step == 6
    stored = json.loads((tmp_path / "run/recipe.json").read_text())["recipe"]["train"]
    assert stored["steps"] == 6


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize("setting", ["lr=0.1", "dim=32", "seed=3", "length=8"])
def test_what_cannot_change_any_more_is_refused_by_name(setting, first):
    before = (first / "run/recipe.json").read_text()
    name = setting.partition("=")[0]
    with pytest.raises(ConfigError, match=rf"needs one of steps, .* begun, got \w+\.{name}="):
        runs.fit(first / "run", settings=[setting])
    assert (first / "run/recipe.json").read_text() == before


@pytest.mark.usefixtures("users_view")
def test_weights_of_another_kind_of_model_are_refused():
    with pytest.raises(ConfigError, match="init_from: needs a model with tensors of this one"):
        load_matching_weights(torch.nn.Conv1d(1, 1, 1), torch.nn.Linear(2, 2))


def test_the_settings_of_a_resumed_run_exist():
    names = {f"train.{name}" for name in train.TrainConfig.__dataclass_fields__}
    assert set(runs.training.RESUMABLE) <= names
