"""Recipes as TOML files: read, validated together, and written with comments."""

import inspect
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from regard.errors import ConfigError, FileError, RegardError, suggestion
from regard.files import parse_toml, read_text
from regard.models import config_types
from regard.tasks.base import Recipe, Task
from regard.tasks.registry import find_task
from regard.train.config import TrainConfig

C = TypeVar("C")
MAX_FLOAT = sys.float_info.max  # whole numbers of TOML may be larger
SIMPLE = {int: "an integer", float: "a number", bool: "true or false", str: "a text"}


def read_recipe_file(path: str | Path) -> Recipe:
    """The recipe in a TOML file; paths in its `[data]` are relative to the file."""
    return parse_recipe(read_text(path), str(path), base=Path(path).resolve().parent)


def parse_recipe(text: str, name: str, *, base: Path | None = None) -> Recipe:
    """The recipe that a TOML text describes; all that is wrong is reported together.

    Args:
        text: the TOML: `task`, optionally `name`, and the tables `[data]`, `[model]`, `[train]`.
        name: of the file, for messages; its stem is the recipe's default name, for task.toml that
            of its folder.
        base: folder that paths are relative to; None leaves them.

    >>> parse_recipe('task = "phrases"\\n[train]\\nsteps = 5', "mine.toml")
    Traceback (most recent call last):
        ...
    regard.errors.ConfigError: mine.toml: needs [model], got none
    """
    try:
        table = parse_toml(text)
    except ValueError as error:
        raise FileError(f"{name}: needs TOML, got {error}") from error
    for key, value in table.items():
        if key not in RECIPE_KEYS:
            known = ", ".join(RECIPE_KEYS)
            raise ConfigError(f"{name}: needs {known}, got {key!r}{suggestion(key, RECIPE_KEYS)}")
        if type(value) is not RECIPE_KEYS[key]:
            rule = "a text" if RECIPE_KEYS[key] is str else f"a table, [{key}]"
            raise ConfigError(f"{name}: needs {key} as {rule}, got {value!r:.60}")
    for key in ("task", "model", "train"):
        if key not in table:
            raise ConfigError(f"{name}: needs {key if key == 'task' else f'[{key}]'}, got none")
    cls, problems = find_task(table["task"]), list[str]()
    given = {key: getattr(cls, key, "") for key in cls.paths if getattr(cls, key, "")}  # defaults
    given |= table.get("data", {})
    data = {key: _resolve(value, key, cls, base) for key, value in given.items()}
    model = dict(table["model"])
    types = {model_type(kind): kind for kind in config_types().values()}
    kind = types.get(str(model.pop("type", "")))
    if kind is None:
        got = table["model"].get("type")
        problems.append(f"model.type: needs one of {', '.join(types)}, got {got!r}")
    else:
        known = {field.name for field in fields(kind)}
        model = {key: 1 for key in RESOLVED if key in known} | model
    parts = {
        "data": collect_config(cls, data, "data", problems),
        "model": kind and collect_config(kind, model, "model", problems),
        "train": collect_config(TrainConfig, table["train"], "train", problems),
    }
    raise_problems(name, problems)
    stem = Path(name).stem
    default = base.name if base is not None and base.name and stem == "task" else stem
    try:
        return Recipe(name=table.get("name", default), **parts)
    except RegardError as error:
        raise_problems(name, [str(error)])
        raise


RECIPE_KEYS = {"name": str, "task": str, "data": dict, "model": dict, "train": dict}
RESOLVED = ("vocab", "source_vocab", "target_vocab", "classes")  # sizes that the data decides
# the data before what is made of it
FIRST = (
    *("folder", "path", "train", "valid", "test", "split_by"),
    *("source_language", "target_language"),
)


def model_type(kind: type) -> str:
    """The name of a model's config in recipe files."""
    name = kind.__name__.removesuffix("Config")
    return name.removesuffix("Translator").lower() or name.lower()  # recurrent, translator, …


def _resolve(value: Any, key: str, cls: type[Task], base: Path | None) -> Any:
    if base is None or key not in cls.paths or not value:
        return value
    if isinstance(value, list):
        return [_resolve(item, key, cls, base) for item in value]
    return str(base / Path(value).expanduser()) if isinstance(value, str) else value


def recipe_to_toml(
    recipe: Recipe,
    *,
    comment: str = "",
    full: bool = False,
    comments: Mapping[str, str] | None = None,
) -> str:
    """A recipe as TOML.

    Args:
        recipe: to be written.
        comment: for the head of the file.
        full: also write defaults, each with its meaning.
        comments: by dotted name, such as "data.vocab_size"; these are written even if default.
    """
    head = "".join(f"# {line}\n" for line in comment.splitlines())
    kind = f"type = {toml_value(model_type(type(recipe.model)))}\n"
    tables = [
        config_to_toml(recipe.data, "data", full=full, comments=comments),
        config_to_toml(recipe.model, "model", full=full, lead=kind, comments=comments),
        config_to_toml(recipe.train, "train", full=full, comments=comments),
    ]
    name = f"name = {toml_value(recipe.name)}\ntask = {toml_value(recipe.data.name)}\n"
    return head + "\n".join([name, *filter(None, tables)])


def raise_problems(name: str, problems: list[str]) -> None:
    """Raise one ConfigError that lists the problems, if there are any."""
    if problems:
        lines = "\n  ".join(problems)
        count = f"{len(problems)} problem{'s' * (len(problems) > 1)}"
        raise ConfigError(f"{name}: needs valid settings, got {count}:\n  {lines}")


def collect_config(
    kind: type[C], table: Mapping[str, Any], name: str, problems: list[str]
) -> C | None:
    """A dataclass of settings from a TOML table; None if problems were appended to `problems`.

    >>> problems = []
    >>> collect_config(TrainConfig, {"step": 9, "lr": "fast"}, "train", problems)
    >>> print("\\n".join(problems))
    train.step: needs the name of a setting, got 'step'; try steps
    train.lr: needs a number, got 'fast'
    train.steps: needs a value, got none
    """
    hints, before = get_type_hints(kind), len(problems)
    settings = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in settings:
            near = suggestion(key, settings)
            problems.append(f"{name}.{key}: needs the name of a setting, got {key!r}{near}")
        elif is_dataclass(hints[key]):
            if isinstance(value, Mapping):
                # a sub-table changes the default of its field, rather than that of its class
                base = _default(settings[key])
                names = [] if base is MISSING or base is None else [x.name for x in fields(base)]
                inner = {x: getattr(base, x) for x in names} | dict(value)
                values[key] = collect_config(hints[key], inner, f"{name}.{key}", problems)
            else:
                problems.append(f"{name}.{key}: needs a table, got {value!r}")
        else:
            try:
                values[key] = convert(value, hints[key])
            except ValueError:
                problems.append(f"{name}.{key}: needs {describe_type(hints[key])}, got {value!r}")
    for key, field in settings.items():
        if key not in table and _default(field) is MISSING:
            problems.append(f"{name}.{key}: needs a value, got none")
    if len(problems) > before:
        return None
    try:
        return kind(**values)
    except (RegardError, ArithmeticError, MemoryError) as error:  # sizes of hundreds of digits
        problems.append(f"{name}.{error}")
        return None


def _default(field: Field) -> Any:
    if field.default is not MISSING or field.default_factory is MISSING:
        return field.default
    return field.default_factory()


def convert(value: Any, hint: Any) -> Any:
    """A TOML value as the type of a setting; ValueError if it is of another one.

    >>> convert(3, float | None), convert(["en", "de"], tuple[str, ...]), convert("none", int | None)
    (3.0, ('en', 'de'), None)
    """  # noqa: E501
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if NoneType in kinds and (value is None or value == "none"):
        return None
    for kind in kinds:
        origin = get_origin(kind)
        if origin is Literal and value in get_args(kind):
            return value
        if origin is tuple and isinstance(value, list | tuple):
            return _convert_tuple(value, get_args(kind))
        is_number = type(value) is float or (type(value) is int and abs(value) <= MAX_FLOAT)
        if kind is float and is_number:
            return float(value)
        if kind in (int, str, bool) and type(value) is kind:
            return value
    raise ValueError(value)


def _convert_tuple(value: Any, kinds: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(convert(item, kinds[0]) for item in value)
    if len(kinds) != len(value):
        raise ValueError(value)
    return tuple(convert(item, kind) for item, kind in zip(value, kinds, strict=True))


def is_setting(hint: Any) -> bool:
    """Whether a type is one that recipe files can hold: a number, text, choice, or tuple of them.

    >>> is_setting(tuple[float, float] | None), is_setting(Any)
    (True, False)
    """
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return all(k in (*SIMPLE, NoneType) or get_origin(k) in (Literal, tuple) for k in kinds)


def describe_type(hint: Any) -> str:
    """A type as error messages name it.

    >>> describe_type(Literal["a", "b"]), describe_type(tuple[str, ...]), describe_type(int | None)
    ('one of a, b', 'a list of texts', 'an integer or "none"')
    """
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    names = []
    for kind in kinds:
        if get_origin(kind) is Literal:
            names.append(f"one of {', '.join(map(str, get_args(kind)))}")
        elif get_origin(kind) is tuple:
            inner = describe_type(get_args(kind)[0]).partition(" ")[2]
            names.append(f"a list of {inner}s")
        elif kind is NoneType:
            names.append('"none"')
        else:
            names.append(SIMPLE.get(kind, str(kind)))
    return " or ".join(names)


def setting_docs(kind: type) -> dict[str, str]:
    """The meaning of each setting, from the `Args:` block of the class and its bases.

    >>> from regard.train import TrainConfig
    >>> setting_docs(TrainConfig)["steps"]
    'number of optimizer updates.'
    """
    comments: dict[str, str] = {}
    for cls in reversed(kind.__mro__):
        block = re.search(
            r"Args:\n(.*?)(?:\n\n|\Z)", inspect.cleandoc(cls.__doc__ or ""), re.DOTALL
        )
        for match in re.finditer(
            r"^    ([\w, ]+): (.*(?:\n {5,}.*)*)", block[1] if block else "", re.MULTILINE
        ):
            for name in match[1].split(", "):
                comments[name] = " ".join(match[2].split())
    return comments


def config_to_toml(
    config: Any,
    heading: str,
    *,
    full: bool = False,
    lead: str = "",
    comments: Mapping[str, str] | None = None,
    default: Any = None,
) -> str:
    """A dataclass of settings as a TOML table, with sub-tables; only what is not the default.

    Args:
        config: the settings.
        heading: name of the table.
        full: also write defaults, each with its meaning as a comment.
        lead: lines to start the table with.
        comments: by dotted name; these settings are written even if default.
        default: what the table changes when it is read; None is the defaults of its class.

    >>> from regard.train import TrainConfig
    >>> print(config_to_toml(TrainConfig(steps=9, lr=0.5), "train"), end="")
    [train]
    steps = 9
    lr = 0.5
    """
    lines, tables, notes = [lead] if lead else [], [], dict[str, str]()
    if full:
        notes = {f"{heading}.{k}": text for k, text in setting_docs(type(config)).items()}
    notes |= comments or {}
    for field in sorted(fields(config), key=lambda field: field.name not in FIRST):
        value, name = getattr(config, field.name), f"{heading}.{field.name}"
        before = _default(field) if default is None else getattr(default, field.name)
        if is_dataclass(value):
            if full or value != before:
                base = before if is_dataclass(before) else None
                inner = config_to_toml(value, name, full=full, comments=comments, default=base)
                tables.append(inner)
        elif (full or value != before or name in notes) and not (
            field.name in RESOLVED and value == 1
        ):
            comment = f"  # {notes[name]}" if name in notes else ""
            lines.append(f"{field.name} = {toml_value(value)}{comment}\n")
    table = [f"[{heading}]\n{''.join(lines)}"] if lines else []
    return "\n".join([*table, *tables])


def toml_value(value: Any) -> str:
    """A value as TOML.

    >>> [toml_value(x) for x in ("a\\n", 2, 0.5, True, ("x", "y"), None)]
    ['"a\\\\n"', '2', '0.5', 'true', '["x", "y"]', '"none"']
    """
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, float):  # also infinite, which JSON is not
        return repr(value)
    text = json.dumps("none" if value is None else value, ensure_ascii=False)
    return text.replace("\x7f", "\\u007f")  # strings of JSON are those of TOML but for this
