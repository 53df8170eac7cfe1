"""The registry of recipes and data modules."""

from collections.abc import Callable
from typing import Any, TypeVar

from regard.errors import ConfigError, suggestion
from regard.models import config_types
from regard.tasks.recipe import DataModule, Recipe

RECIPES: dict[str, Callable[[], Recipe]] = {}
DATA_MODULES: dict[str, type[DataModule]] = {}

Item = TypeVar("Item", bound=Callable[..., Any])


def register(item: Item, *, name: str | None = None) -> Item:
    """Register a data module class, or a function that returns a recipe; also as a decorator.

    A data module has to be registered for its runs to be read back. A recipe's name is that of its
    function, with hyphens for underscores, unless `name` is given.

    >>> _ = register(lambda: recipe("phrases"), name="phrases-again")
    >>> RECIPES.pop("phrases-again")().train.steps
    2000
    """
    kind: Any = item
    is_data = isinstance(kind, type) and issubclass(kind, DataModule)
    if isinstance(kind, type) and not is_data:
        raise ConfigError(f"item: needs a DataModule or a function, got class {kind.__name__}")
    registry: dict[str, Any] = DATA_MODULES if is_data else RECIPES
    key = name or (kind.__name__ if is_data else kind.__name__.replace("_", "-"))
    if key in registry:
        raise ConfigError(f"name: needs an unused name, got {key!r}; try name=")
    registry[key] = item
    return item


def recipe(name: str) -> Recipe:
    """A registered recipe.

    >>> recipe("phrase")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    regard.errors.ConfigError: recipe: needs one of ..., got 'phrase'; try phrases
    """
    if name in RECIPES:
        return RECIPES[name]()
    known = ", ".join(sorted(RECIPES))
    raise ConfigError(f"recipe: needs one of {known}, got {name!r}{suggestion(name, RECIPES)}")


def recipe_config_types() -> dict[str, type]:
    """The types of a recipe's data and model, by class name, for reading recipe.json.

    >>> "PhrasesData" in recipe_config_types(), "TranslatorConfig" in recipe_config_types()
    (True, True)
    """
    return {**DATA_MODULES, **config_types()}
