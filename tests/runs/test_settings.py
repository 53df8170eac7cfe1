"""Settings by name: typed, nested, to JSON and back; a typo gets the nearest name."""

import json
from dataclasses import replace
from typing import Literal

import pytest

from regard import models
from regard.errors import ConfigError
from regard.runs import (
    config_from_json,
    config_to_json,
    iter_settings,
    override_settings,
    parse_value,
)
from regard.tasks import Recipe, recipe
from regard.tasks.registry import recipe_config_types

# ---- worked numbers


@pytest.mark.parametrize(
    ("text", "hint", "want"),
    [
        ("7", int, 7),
        ("1e-3", float, 0.001),
        ("none", int | None, None),
        ("5", int | None, 5),
        ("True", bool, True),
        ("no", bool, False),
        ("en, de", tuple[str, ...], ("en", "de")),
        ("0.9,0.95", tuple[float, float], (0.9, 0.95)),
        ("cosine", Literal["cosine", "constant"], "cosine"),
        ("none", Literal["none", "alibi"], "none"),
    ],
)
def test_a_value_has_the_type_of_its_setting(text, hint, want):
    got = parse_value(text, hint)
    assert (got, type(got)) == (want, type(want))


def test_a_setting_is_found_by_its_whole_name_or_by_its_clear_end():
    base = recipe("phrases")
    changed = override_settings(base, ["train.lr=0.5", "dim=32", "languages=en,de"])
    assert (changed.train.lr, changed.model.dim) == (0.5, 32)
    assert changed.data.languages == ("en", "de")
    assert override_settings(changed, ["lr=0.002"]).train == replace(base.train, lr=0.002)
    assert base.train.lr != 0.5


# ---- properties


@pytest.mark.parametrize(
    "model",
    [models.translator_tiny(1, rope_theta=100.0), models.recurrent_tiny(1, attention="hybrid")],
    ids=lambda model: type(model).__name__,
)
def test_a_recipe_comes_back_from_json(model):
    config = replace(recipe("phrases"), model=model)
    assert (
        config_from_json(
            Recipe, json.loads(json.dumps(config_to_json(config))), "recipe", recipe_config_types()
        )
        == config
    )


def test_every_setting_can_be_given_as_it_is_shown():
    base = recipe("phrases")
    shown = [
        f"{name}={','.join(map(str, value)) if isinstance(value, tuple) else value}"
        for name, value in iter_settings(base)
    ]
    assert override_settings(base, shown) == base


# ---- errors


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("dimm=3", "set: needs the name of a setting, got 'dimm'; try dim"),
        ("train.stepz=3", r"got 'train.stepz'; try train\.steps"),
        ("lr", "set: needs name=value, got 'lr'"),
        ("steps=many", "train.steps: needs an integer, got 'many'"),
        ("steps=1.5", "train.steps: needs an integer, got '1.5'"),
        ("schedule=cosin", "schedule: needs one of inverse_sqrt, cosine, constant, got 'cosin'"),
        ("tied=maybe", "model.tied: needs true or false, got 'maybe'"),
        ("heads=3", "dim: needs a multiple of heads=3, got"),
        ("languages=xx,de", "languages: need languages of CLDR, got 'xx'"),
    ],
)
def test_what_cannot_be_set_is_reported(setting, message):
    with pytest.raises(ConfigError, match=message):
        override_settings(recipe("phrases"), [setting])


@pytest.mark.usefixtures("users_view")
def test_a_recipe_that_was_meddled_with_is_refused():
    config = config_to_json(recipe("phrases"))
    with pytest.raises(ConfigError, match="needs known settings, got 'lrr'; try lr"):
        config_from_json(
            Recipe,
            config | {"train": config["train"] | {"lrr": 1}},
            "recipe",
            recipe_config_types(),
        )
    with pytest.raises(ConfigError, match=r"recipe\.model: needs one of .*, got 'Table'"):
        config_from_json(
            Recipe, config | {"model": {"kind": "Table"}}, "recipe", recipe_config_types()
        )
    with pytest.raises(ConfigError, match="recipe: needs every setting, got .*'name'"):
        config_from_json(
            Recipe,
            {k: v for k, v in config.items() if k != "name"},
            "recipe",
            recipe_config_types(),
        )
