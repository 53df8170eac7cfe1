"""Configs as JSON, and settings overridden by name from the command line."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from regard.errors import ConfigError, suggestion
from regard.tasks.recipe_file import convert, describe_type, is_setting

C = TypeVar("C")


class UnknownKind(ConfigError):
    """A class of settings that nothing has registered."""


def override_settings(config: C, settings: Sequence[str]) -> C:
    """A copy of a config with settings changed, each given as `name=value`.

    A name may be the last part of a dotted one where that is unique. Values are validated together,
    so their order does not matter.

    >>> config = rg.train.TrainConfig(steps=9)
    >>> override_settings(config, ["lr=3e-4", "patience=none", "betas=0.9,0.95"]).betas
    (0.9, 0.95)
    >>> override_settings(config, ["wormup=5"])
    Traceback (most recent call last):
        ...
    regard.errors.ConfigError: set: needs the name of a setting, got 'wormup'; try warmup
    """
    values: dict[str, str] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise ConfigError(f"set: needs name=value, got {setting!r}; try {name}=…")
        values[_find(config, name.strip())] = text.strip()
    return _put(config, values)


def iter_settings(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting of a config as (dotted name, value).

    >>> dict(iter_settings(rg.train.TrainConfig(steps=9)))["steps"]
    9
    """
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            yield from iter_settings(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, value


def config_to_json(config: Any) -> dict[str, Any]:
    """A config as JSON data; each dataclass is tagged with its `kind`.

    >>> config_to_json(rg.train.TrainConfig(steps=9))["kind"]
    'TrainConfig'
    """
    data: dict[str, Any] = {"kind": type(config).__name__}
    for field in fields(config):
        value = getattr(config, field.name)
        data[field.name] = config_to_json(value) if is_dataclass(value) else value
    return data


def config_from_json(
    kind: type[C], data: Any, label: str, kinds: Mapping[str, type] | None = None
) -> C:
    """Read back what `config_to_json` wrote; an unknown or missing setting raises a ConfigError.

    Args:
        kind: the dataclass to read.
        data: parsed JSON.
        label: how error messages name it.
        kinds: dataclasses by name, for settings whose annotation does not tell which.

    >>> config = rg.train.TrainConfig(steps=9)
    >>> config_from_json(type(config), config_to_json(config), "recipe") == config
    True
    """
    if not isinstance(data, Mapping) or data.get("kind") != kind.__name__:
        raise ConfigError(f"{label}: needs the settings of {kind.__name__}, got {data!r:.60}")
    hints = get_type_hints(kind)
    values = {name: value for name, value in data.items() if name != "kind"}
    for name, value in values.items():
        if name not in hints:
            raise ConfigError(
                f"{label}: needs known settings, got {name!r}{suggestion(name, hints)}"
            )
        values[name] = _value(value, hints[name], f"{label}.{name}", kinds or {})
    try:
        return kind(**values)
    except (TypeError, AttributeError, ArithmeticError) as error:
        raise ConfigError(f"{label}: needs every setting, got {error}") from error


def _value(value: Any, hint: Any, what: str, kinds: Mapping[str, type]) -> Any:
    """JSON lists become tuples, tagged objects become configs."""
    if isinstance(value, Mapping):
        types: tuple[Any, ...] = get_args(hint) or (hint,)
        annotated = {t.__name__: t for t in types if hasattr(t, "__dataclass_fields__")}
        known: Mapping[str, Any] = annotated or kinds
        kind = known.get(str(value.get("kind")))
        if kind is None:
            error = ConfigError if annotated else UnknownKind
            raise error(f"{what}: needs one of {', '.join(known)}, got {value.get('kind')!r}")
        return config_from_json(kind, value, what, kinds)
    if not is_setting(hint):
        return tuple(value) if isinstance(value, list) else value
    try:
        return convert(value, hint)
    except ValueError:
        raise ConfigError(f"{what}: needs {describe_type(hint)}, got {value!r:.60}") from None


def _find(config: Any, name: str) -> str:
    known = [path for path, _ in iter_settings(config)]
    if name in known:
        return name
    ends = [path for path in known if path.endswith(f".{name}")]
    if len(ends) == 1:
        return ends[0]
    if ends:
        raise ConfigError(f"set: needs one setting, got {name!r}; try {' or '.join(ends)}")
    short = {path.rpartition(".")[2]: path for path in known} | {path: path for path in known}
    raise ConfigError(f"set: needs the name of a setting, got {name!r}{suggestion(name, short)}")


def _put(config: Any, values: Mapping[str, str], prefix: str = "") -> Any:
    """The config with values parsed and put at their dotted names."""
    hints, changed = get_type_hints(type(config)), dict[str, Any]()
    for field in fields(config):
        value, path = getattr(config, field.name), prefix + field.name
        if path in values:
            changed[field.name] = parse_value(values[path], hints[field.name], path)
        elif any(name.startswith(f"{path}.") for name in values):
            changed[field.name] = _put(value, values, f"{path}.")
    return replace(config, **changed) if changed else config


def parse_value(text: str, hint: Any, name: str = "value") -> Any:
    """Parse a value by its type annotation.

    >>> parse_value("3", int), parse_value("3", float), parse_value("en,de", tuple[str, ...])
    (3, 3.0, ('en', 'de'))
    """
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if NoneType in kinds and text.lower() in ("none", ""):
        return None
    for kind in kinds:
        try:
            if kind is not NoneType:
                return _parse(text, kind)
        except (ValueError, KeyError):
            continue
    raise ConfigError(f"{name}: needs {describe_type(hint)}, got {text!r}")


def _parse(text: str, kind: Any) -> Any:
    if get_origin(kind) is Literal:
        return {str(choice): choice for choice in get_args(kind)}[text]
    if get_origin(kind) is tuple:
        of = get_args(kind)[0]
        return tuple(_parse(part.strip(), of) for part in text.split(",") if part.strip())
    if kind is bool:
        return {"true": True, "yes": True, "false": False, "no": False}[text.lower()]
    return kind(text)
