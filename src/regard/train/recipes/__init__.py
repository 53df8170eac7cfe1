"""Recipes: small functions that each return a whole training as one frozen config."""

from collections.abc import Callable
from difflib import get_close_matches

from regard.errors import ConfigError
from regard.models import config_kinds
from regard.train.recipes.phrases import PhrasesData, phrases
from regard.train.recipes.recipe import Recipe, Task

__all__ = ["DATA", "RECIPES", "PhrasesData", "Recipe", "Task", "part_kinds", "recipe"]

RECIPES: dict[str, Callable[[], Recipe]] = {"phrases": phrases}

DATA = (PhrasesData,)  # what the data of a recipe can be, for reading one back


def recipe(name: str) -> Recipe:
    """A recipe by its name.

    >>> recipe("phrase")
    Traceback (most recent call last):
        ...
    regard.errors.ConfigError: recipe: needs one of phrases, got 'phrase'; try phrases
    """
    if name in RECIPES:
        return RECIPES[name]()
    close = get_close_matches(name, RECIPES, 1)
    hint = f"; try {close[0]}" if close else ""
    raise ConfigError(f"recipe: needs one of {', '.join(RECIPES)}, got {name!r}{hint}")


def part_kinds() -> dict[str, type]:
    """What the parts of a recipe can be, by name: data and configs of models."""
    return {kind.__name__: kind for kind in DATA} | config_kinds()
