"""Configs as text: to JSON and back, and single settings changed by name."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from regard.errors import ConfigError, suggestion

C = TypeVar("C")


def override_settings(config: C, settings: Sequence[str]) -> C:
    """A config with some settings changed, each `name=value`; a name may leave out what is clear.

    The settings are checked together, once all have their values: their order does not matter.

    >>> from regard.train import TrainConfig
    >>> override_settings(TrainConfig(steps=9), ["lr=3e-4", "patience=none", "betas=0.9,0.95"]).betas
    (0.9, 0.95)
    >>> override_settings(TrainConfig(steps=9), ["wormup=5"])
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
    """Every setting of a config with its value, by its dotted name.

    >>> from regard.train import TrainConfig
    >>> dict(iter_settings(TrainConfig(steps=9)))["steps"]
    9
    """
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            yield from iter_settings(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, value


def config_to_json(config: Any) -> dict[str, Any]:
    """A config as JSON can hold it; each part says of which kind it is.

    >>> from regard.train import TrainConfig
    >>> config_to_json(TrainConfig(steps=9))["kind"]
    'TrainConfig'
    """
    told: dict[str, Any] = {"kind": type(config).__name__}
    for field in fields(config):
        value = getattr(config, field.name)
        told[field.name] = config_to_json(value) if is_dataclass(value) else value
    return told


def config_from_json(
    kind: type[C], data: Any, label: str, kinds: Mapping[str, type] | None = None
) -> C:
    """The config that `config_to_json` told; what is unknown or missing is an error that names it.

    Parts are of the kind that their setting says, or else one of `kinds`, by name.

    >>> from regard.train import TrainConfig
    >>> config_from_json(TrainConfig, config_to_json(TrainConfig(steps=9, lr=0.5)), "recipe").lr
    0.5
    """
    if not isinstance(data, Mapping) or data.get("kind") != kind.__name__:
        raise ConfigError(f"{label}: needs the settings of {kind.__name__}, got {data!r:.60}")
    hints = get_type_hints(kind)
    values = {name: value for name, value in data.items() if name != "kind"}
    for name, value in values.items():
        if name not in hints:
            raise ConfigError(
                f"{label}: needs known settings, got {name!r}{suggestion(name, hints, 0.5)}"
            )
        values[name] = _value(value, hints[name], f"{label}.{name}", kinds or {})
    try:
        return kind(**values)
    except TypeError as error:
        raise ConfigError(f"{label}: needs every setting, got {error}") from error


def _value(value: Any, hint: Any, what: str, kinds: Mapping[str, type]) -> Any:
    """Lists become tuples again, parts become configs of their kind."""
    if isinstance(value, Mapping):
        parts: tuple[Any, ...] = get_args(hint) or (hint,)
        said: dict[str, Any] = {p.__name__: p for p in parts if hasattr(p, "__dataclass_fields__")}
        known = said or kinds
        kind = known.get(str(value.get("kind")))
        if kind is None:
            raise ConfigError(f"{what}: needs one of {', '.join(known)}, got {value.get('kind')!r}")
        return config_from_json(kind, value, what, kinds)
    return tuple(value) if isinstance(value, list) else value


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
    raise ConfigError(
        f"set: needs the name of a setting, got {name!r}{suggestion(name, short, 0.5)}"
    )


def _put(config: Any, values: Mapping[str, str], before: str = "") -> Any:
    """The config with the values of its dotted names, read and checked together."""
    hints, changed = get_type_hints(type(config)), dict[str, Any]()
    for field in fields(config):
        value, path = getattr(config, field.name), before + field.name
        if path in values:
            changed[field.name] = parse_value(values[path], hints[field.name], path)
        elif any(name.startswith(f"{path}.") for name in values):
            changed[field.name] = _put(value, values, f"{path}.")
    return replace(config, **changed) if changed else config


def parse_value(text: str, hint: Any, name: str = "value") -> Any:
    """A value from a command line, of the type that its setting has.

    >>> parse_value("3", int), parse_value("3", float), parse_value("en,de", tuple[str, ...])
    (3, 3.0, ('en', 'de'))
    """
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if NoneType in kinds and text.lower() in ("none", ""):
        return None
    for kind in kinds:
        try:
            if kind is not NoneType:
                return _read_one(text, kind)
        except ValueError:
            continue
    raise ConfigError(f"{name}: needs {_told(hint)}, got {text!r}")


def _read_one(text: str, kind: Any) -> Any:
    if get_origin(kind) is Literal:
        words = {str(word): word for word in get_args(kind)}
        return words[text] if text in words else _refuse(text)
    if get_origin(kind) is tuple:
        of = get_args(kind)[0]
        return tuple(_read_one(part.strip(), of) for part in text.split(",") if part.strip())
    if kind is bool:
        words = {"true": True, "yes": True, "false": False, "no": False}
        return words[text.lower()] if text.lower() in words else _refuse(text)
    return kind(text)


def _refuse(text: str) -> Any:
    raise ValueError(text)


def _told(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, get_args(hint)))}"
    simple = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return simple.get(hint, str(hint))
