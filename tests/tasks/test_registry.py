"""The registry: every registered recipe is complete, and outside files can add their own."""

import json
from dataclasses import dataclass, fields, replace

import pytest
import torch

from regard import models, runs, tasks, train
from regard.errors import ConfigError
from regard.runs.settings import config_from_json, config_to_json
from regard.tasks.registry import DATA_MODULES, RECIPES, recipe_config_types, register

# ---- every recipe


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_a_recipe_is_named_typed_and_registered(name):
    recipe = tasks.recipe(name)
    assert recipe.name == name
    assert DATA_MODULES[type(recipe.data).__name__] is type(recipe.data)
    assert isinstance(models.build(recipe.model), torch.nn.Module)
    assert train.objective(recipe.data.objective).size is not None
    assert recipe.data.batch_limit(recipe.train) > 0


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_a_recipe_is_read_back_from_json(name):
    recipe = tasks.recipe(name)
    values = json.loads(json.dumps(config_to_json(recipe)))
    assert config_from_json(tasks.Recipe, values, "recipe", recipe_config_types()) == recipe


@pytest.mark.parametrize("name", sorted(RECIPES))
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


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_a_task_answers_for_what_its_runs_need(name):
    """What `regard translate`, `classify` and `generate` ask of a run's data module."""
    data = tasks.recipe(name).data
    match data.objective:
        case "translation":
            assert isinstance(data, tasks.TranslationData)
            assert data.search.max_new_tokens > 0
        case "next_token":
            assert isinstance(data, tasks.LanguageData)
        case "class":
            assert isinstance(data, tasks.ImageData)
            assert data.input_size > 0
            assert len(data.class_names) == tasks.recipe(name).model.classes
        case other:
            assert other == "ctc"


# ---- registration


@dataclass(frozen=True, kw_only=True)
class CountingData(tasks.LanguageData):
    """Sequences that count upwards: the smallest data module there is."""

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
    return tasks.Recipe(name="counting", data=CountingData(), model=model, train=config)


@pytest.fixture
def registered():
    register(CountingData)
    register(counting)
    yield
    del DATA_MODULES["CountingData"], RECIPES["counting"]


@pytest.mark.usefixtures("registered")
def test_an_outside_data_module_trains_and_its_run_is_read_back(tmp_path):
    recipe = runs.override_settings(tasks.recipe("counting"), ["length=4"])
    assert runs.start_run(recipe, tmp_path / "run").reason == "finished"
    run = runs.load_run(tmp_path / "run")
    assert run.recipe == recipe
    assert [field.name for field in fields(run.recipe.data)] == ["length"]


@pytest.mark.usefixtures("registered", "users_view")
def test_a_name_is_registered_once():
    with pytest.raises(ConfigError, match="name: needs an unused name, got 'counting'; try name="):
        register(counting)
    with pytest.raises(ConfigError, match="name: needs an unused name, got 'CountingData'"):
        register(CountingData)
    with pytest.raises(ConfigError, match="item: needs a DataModule or a function, got class Cou"):
        register(Counting)
