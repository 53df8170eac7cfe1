"""Recipes: small functions that each return a whole training as one frozen config."""

from collections.abc import Callable

from regard.errors import ConfigError, suggestion
from regard.models import config_types
from regard.tasks.classification.images import (
    FashionData,
    GlyphsData,
    fashion_resnet,
    fashion_vit,
    glyphs,
    glyphs_resnet,
)
from regard.tasks.language.text import TextData, shakespeare, stdlib, stdlib_long
from regard.tasks.recipe import DataModule, Recipe
from regard.tasks.recognition.speech import MorseData, morse
from regard.tasks.translation.parallel_text import ParallelTextData, multi30k_de_en, multi30k_en_de
from regard.tasks.translation.phrases import (
    PhrasesData,
    phrases,
    phrases_gru,
    phrases_long,
    phrases_natural,
)

__all__ = [
    "DATA_MODULES",
    "RECIPES",
    "FashionData",
    "GlyphsData",
    "MorseData",
    "ParallelTextData",
    "PhrasesData",
    "Recipe",
    "DataModule",
    "TextData",
    "recipe_config_types",
    "recipe",
]

RECIPES: dict[str, Callable[[], Recipe]] = {
    "fashion-resnet": fashion_resnet,
    "fashion-vit": fashion_vit,
    "glyphs": glyphs,
    "glyphs-resnet": glyphs_resnet,
    "morse": morse,
    "multi30k-de-en-gru": lambda: multi30k_de_en("gru"),
    "multi30k-de-en-gru-attention": lambda: multi30k_de_en("gru-attention"),
    "multi30k-de-en-lstm": lambda: multi30k_de_en("lstm"),
    "multi30k-de-en-transformer": lambda: multi30k_de_en("transformer"),
    "multi30k-en-de": multi30k_en_de,
    "phrases": phrases,
    "phrases-gru": phrases_gru,
    "phrases-long": phrases_long,
    "phrases-natural": phrases_natural,
    "shakespeare": shakespeare,
    "stdlib": stdlib,
    "stdlib-long": stdlib_long,
}

# what the data of a recipe can be, for reading one back
DATA_MODULES = (
    FashionData,
    GlyphsData,
    MorseData,
    ParallelTextData,
    PhrasesData,
    TextData,
)


def recipe(name: str) -> Recipe:
    """A recipe by its name.

    >>> recipe("phrase")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    regard.errors.ConfigError: recipe: needs one of ..., got 'phrase'; try phrases
    """
    if name in RECIPES:
        return RECIPES[name]()
    raise ConfigError(
        f"recipe: needs one of {', '.join(RECIPES)}, got {name!r}{suggestion(name, RECIPES)}"
    )


def recipe_config_types() -> dict[str, type]:
    """What the parts of a recipe can be, by name: data and configs of models."""
    return {kind.__name__: kind for kind in DATA_MODULES} | config_types()
