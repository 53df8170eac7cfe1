"""The registry: every registered recipe is complete, and outside files can add their own."""

import json
from dataclasses import dataclass, fields, replace

import pytest
import torch

from regard import models, runs, tasks, train
from regard.errors import ConfigError, FileError
from regard.runs.settings import config_from_json, config_to_json
from regard.tasks.recipe_file import parse_recipe, recipe_to_toml
from regard.tasks.registry import TASKS, recipe_config_types, recipe_names, recipe_text, task

# ---- every recipe


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_is_named_typed_and_registered(name):
    recipe = tasks.recipe(name)
    assert recipe.name == name
    assert TASKS[recipe.data.name] is type(recipe.data)
    assert isinstance(models.build(recipe.model), torch.nn.Module)
    assert train.objective(recipe.data.objective).size is not None
    assert recipe.data.batch_limit(recipe.train) > 0


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_is_read_back_from_json(name):
    recipe = tasks.recipe(name)
    values = json.loads(json.dumps(config_to_json(recipe)))
    assert config_from_json(tasks.Recipe, values, "recipe", recipe_config_types()) == recipe


@pytest.mark.parametrize("name", recipe_names())
def test_a_batch_is_limited_in_the_unit_of_its_task(name, users_view):
    recipe = tasks.recipe(name)
    unit = recipe.data.batch_unit
    other = "batch_size" if unit == "batch_tokens" else "batch_tokens"
    settings = [f"{unit}=7"]
    assert runs.override_settings(recipe, settings).data.batch_limit(
        replace(recipe.train, **{unit: 7})
    ) == 7  # fmt: skip
    with pytest.raises(ConfigError, match=rf"{other}: needs to be unset .*got 7; try {unit}=…"):
        runs.override_settings(recipe, [f"{other}=7"])


@pytest.mark.parametrize("name", recipe_names())
def test_a_task_answers_for_what_its_runs_need(name):
    """What `regard translate`, `classify` and `generate` ask of a run's task."""
    data = tasks.recipe(name).data
    match data.objective:
        case "translation":
            assert isinstance(data, tasks.TranslationTask)
            assert data.search.max_new_tokens > 0
        case "next_token":
            assert isinstance(data, tasks.LanguageTask)
        case "class":
            assert isinstance(data, tasks.ImageTask)
            assert data.input_size > 0
            assert len(data.class_names) == tasks.recipe(name).model.classes
        case other:
            assert other == "ctc"


# ---- registration


@dataclass(frozen=True, kw_only=True)
class CountingTask(tasks.LanguageTask):
    """Sequences that count upwards: the smallest task there is."""

    length: int = 8

    def document_edges(self, tokenizer):
        return []

    def resolve(self, model, tokenizer):
        return replace(model, vocab=32)

    def batches(self, tokenizer, train, *, rank=0, world_size=1):
        return Counting(self.batch_limit(train) // self.length, self.length)

    def evaluator(self, tokenizer, split):
        batch = next(iter(Counting(4, self.length)))
        return lambda model: {
            "loss": train.mean_loss(model, train.objective("next_token"), [batch])
        }


class Counting:
    def __init__(self, rows: int, length: int):
        self.rows, self.length, self.position = rows, length, 0

    def __iter__(self):
        while True:
            self.position += 1
            yield {"tokens": torch.arange(self.length + 1).repeat(self.rows, 1)}

    def state(self):
        return {"position": self.position}

    def restore(self, state):
        self.position = state["position"]


def counting() -> tasks.Recipe:
    config = train.TrainConfig(steps=4, batch_tokens=32, warmup=1, device="cpu")
    model = models.language_tiny(vocab=1, dim=16, heads=2)
    return tasks.Recipe(name="counting", data=CountingTask(), model=model, train=config)


@pytest.fixture
def registered():
    task("counting")(CountingTask)
    yield
    TASKS.pop("counting", None)


@pytest.mark.usefixtures("registered")
def test_an_outside_task_trains_and_its_run_is_read_back(tmp_path):
    file = tmp_path / "count.toml"
    file.write_text(recipe_to_toml(counting()))
    recipe = runs.override_settings(tasks.recipe(str(file)), ["length=4"])
    assert runs.fit(recipe, tmp_path / "run").reason == "finished"
    run = runs.load_run(tmp_path / "run")
    assert run.recipe == recipe
    assert run.verbs[0] == "generate"
    assert [field.name for field in fields(run.recipe.data)] == ["length"]
    del TASKS["counting"]
    with pytest.raises(
        FileError, match="needs a registered task and model, got 'CountingTask'; try im"
    ):
        runs.load_run(tmp_path / "run")


@pytest.mark.usefixtures("registered", "users_view")
def test_a_name_is_registered_once():
    with pytest.raises(ConfigError, match="name: needs an unused name, got 'counting'"):
        task("counting")(CountingTask)


# ---- recipe files


@pytest.mark.parametrize("name", recipe_names())
@pytest.mark.parametrize("full", [False, True])
def test_a_recipe_is_a_file(name, full):
    recipe = tasks.recipe(name)
    assert recipe_text(name).startswith("# ")
    assert parse_recipe(recipe_to_toml(recipe, full=full), f"{name}.toml") == recipe


def test_the_files_stand_before_what_is_made_of_them():
    data = tasks.PairsTask(train=("a.tsv",), source_language="da", vocab_size=99, lowercase=True)
    text = recipe_to_toml(replace(tasks.recipe("multi30k-en-de"), data=data))
    lines = text.partition("[data]\n")[2].splitlines()[:4]
    names = [line.split(" = ")[0] for line in lines]
    assert names == ["train", "source_language", "vocab_size", "lowercase"]


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('task = "text"', 'task = "txt"'), "task: needs one of .*, got 'txt'; try text"),
        (("[train]", "[trian]"), "mine.toml: needs name, task, .*, got 'trian'; try train"),
        (("steps = 1500", 'steps = "many"'), "train.steps: needs an integer, got 'many'"),
        (('type = "language"', 'type = "lm"'), "model.type: needs one of .*language.*, got 'lm'"),
        (("lr = ", "learning_rate = "), "train.learning_rate: needs the name of a setting"),
        (("overlap = 64", "overlap = 640"), "data.overlap: needs 0 to 255, less than length"),
        (("[data]", "[data"), "mine.toml: needs TOML, got"),
    ],
)
def test_a_mistake_in_a_recipe_file_is_named(change, message):
    with pytest.raises((ConfigError, FileError), match=message):
        parse_recipe(recipe_text("stdlib").replace(*change), "mine.toml")


def test_all_mistakes_of_a_recipe_file_are_reported_together():
    text = recipe_text("stdlib").replace("steps = 1500", "stepz = 1500").replace("dim = 128", "")
    with pytest.raises(ConfigError, match="got 3 problems") as caught:
        parse_recipe(text, "mine.toml")
    for part in (
        "model.dim: needs a value",
        "train.stepz",
        "try steps",
        "train.steps: needs a val",
    ):
        assert part in str(caught.value)


def test_paths_are_relative_to_the_file(tmp_path):
    (tmp_path / "task.toml").write_text(
        recipe_text("stdlib").replace("[data]", '[data]\nfolder = "texts"')
    )
    assert tasks.recipe(str(tmp_path / "task.toml")).data.folder == str(tmp_path / "texts")
