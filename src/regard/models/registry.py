"""The registry of models: which class is built from which config."""

from collections.abc import Callable
from typing import Any, ClassVar, Protocol, TypeVar, cast, runtime_checkable

from torch import nn

from regard.errors import ConfigError

Model = TypeVar("Model", bound=type[nn.Module])


@runtime_checkable
class ModelConfig(Protocol):
    """The config of a model: a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


MODELS: dict[str, type[nn.Module]] = {}  # by class name, as saved in files
CONFIGS: dict[type[nn.Module], type] = {}


def register_model(config: type) -> Callable[[Model], Model]:
    """Class decorator: the model can be built from this config, saved and loaded.

    >>> @register_model(ToyConfig)  # doctest: +SKIP
    ... class Toy(nn.Module): ...
    """

    def register(model: Model) -> Model:
        MODELS[model.__name__], CONFIGS[model] = model, config
        return model

    return register


def build(config: Any) -> nn.Module:
    """The model that a config describes, with newly initialised weights.

    >>> from regard.models import language_tiny
    >>> type(build(language_tiny(vocab=10))).__name__
    'LanguageModel'
    """
    for model, kind in CONFIGS.items():
        if kind is type(config):
            return model(config)
    known = ", ".join(config_types())
    raise ConfigError(f"config: needs one of {known}, got {type(config).__name__}")


def config_types() -> dict[str, type]:
    """All configs that a model can be built from, by class name.

    >>> "LanguageConfig" in config_types()
    True
    """
    return {kind.__name__: kind for kind in CONFIGS.values()}


def get_config(model: nn.Module) -> ModelConfig:
    """The config that a registered model was built from."""
    if type(model) not in CONFIGS:
        known, kind = ", ".join(sorted(MODELS)), type(model).__name__
        raise ConfigError(f"model: needs one of {known}, got {kind}; try model.state_dict()")
    return cast(ModelConfig, model.config)
