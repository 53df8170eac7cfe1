"""What a task does with inputs, declared once: its verb, the kind of its inputs, its options.

    class Shout(Task):
        verb, reads = "shout", Text()

        class Options(TaskOptions):
            "Write texts in capitals."          # help of the command, summary of the route
            times: int = option(default=1, ge=1, help="Repetitions.")

The command, the HTTP route, the file job, the form of the page and `run.shout` are derived from it.
Nothing here imports torch, since `regard --help` reads the verbs.
"""

import inspect
from dataclasses import MISSING, asdict, dataclass, field, fields
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from types import NoneType, UnionType
from typing import (
    Any,
    ClassVar,
    Literal,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from regard.errors import ConfigError, suggestion

KINDS = {int: "an integer", float: "a number", bool: "true or false", str: "a text", Path: "a file"}
SCHEMAS = {int: "integer", float: "number", bool: "boolean", str: "string"}


class OptionError(ConfigError):
    """A value of an option that is not allowed."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option of a task: what each surface has to know of it.

    >>> (top,) = options_of(rg.tasks.LabelsTask.Options)
    >>> top.name, top.type, top.is_optional, top.parse("3")
    ('top', <class 'int'>, True, 3)
    """

    help: str
    ge: float | None = None  # bounds
    gt: float | None = None
    le: float | None = None
    flag: str = ""  # of the command, where that is not the name
    command: Any = None  # default on the command line, where people read the output
    served: float | None = None  # most that a request over HTTP may have: it shares the machine
    local: bool = False  # about what a job on files writes, or a file of this machine
    name: str = ""
    default: Any = None
    is_required: bool = False
    type: Any = str  # of one value
    choices: tuple[str, ...] = ()
    is_list: bool = False
    is_optional: bool = False

    @property
    def rule(self) -> str:
        """What a value needs to be."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        low = "" if self.ge is None else f"{self.ge:g}"
        low = low if self.gt is None else f"more than {self.gt:g}"
        if self.le is not None:
            return f"{low} to {self.le:g}" if low else f"at most {self.le:g}"
        return (f"{low} or more" if self.gt is None else low) if low else KINDS[self.type]

    def check(self, value: Any) -> Any:
        """The value as it is stored; raises where it is not allowed."""
        if value is None and self.is_optional:
            return None
        if self.is_list:
            return tuple(map(self._check_one, [value] if isinstance(value, str) else value or ()))
        return self._check_one(value)

    def _check_one(self, value: Any) -> Any:
        kinds = {float: (int, float), Path: (str, Path)}.get(self.type, self.type)
        is_kind = isinstance(value, kinds) and isinstance(value, bool) == (self.type is bool)
        if not is_kind:
            raise OptionError(f"{self.name}: needs {self.rule}, got {value!r:.60}")
        if self.choices and value not in self.choices:
            hint = suggestion(value, self.choices)
            raise OptionError(f"{self.name}: needs {self.rule}, got {value!r:.60}{hint}")
        is_low = (self.ge is not None and not value >= self.ge) or (
            self.gt is not None and not value > self.gt
        )
        if is_low or (self.le is not None and not value <= self.le):
            raise OptionError(f"{self.name}: needs {self.rule}, got {value:g}")
        return Path(value) if self.type is Path else value

    def parse(self, text: str) -> Any:
        """The value that a text such as `de,fr` or `0.5` stands for."""
        if self.is_list:
            return tuple(self._parse_one(x.strip()) for x in text.split(",") if x.strip())
        return self._parse_one(text)

    def _parse_one(self, text: str) -> Any:
        if self.type is bool and text.lower() in ("true", "false"):
            return text.lower() == "true"
        try:
            return self.type(text) if self.type in (int, float) else text
        except ValueError:
            return text  # which the check refuses

    def describe(self) -> dict[str, Any]:
        """The option as JSON, such as for a form."""
        facts: dict[str, Any] = {"name": self.name, "type": SCHEMAS[self.type], "help": self.help}
        facts |= {"default": self.default, "is_required": self.is_required}
        limits = {"minimum": self.ge, "exclusiveMinimum": self.gt, "maximum": self.most}
        facts |= {name: limit for name, limit in limits.items() if limit is not None}
        return facts | {"choices": list(self.choices), "is_list": self.is_list}

    @property
    def most(self) -> float | None:
        """The upper bound of a request."""
        bounds = [x for x in (self.le, self.served) if x is not None]
        return min(bounds, default=None)


def option(*, help: str, default: Any = MISSING, **facts: Any) -> Any:  # noqa: A002
    """A field of `TaskOptions`: its default, one line of help, and the facts of `Option`.

    >>> class Options(TaskOptions):
    ...     times: int = option(default=1, ge=1, help="Repetitions.")
    >>> Options(times=0)
    Traceback (most recent call last):
        ...
    regard.tasks.verb.OptionError: times: needs 1 or more, got 0
    """
    return field(default=default, metadata={"option": Option(help=help, **facts)})


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(option, field))
@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """Options of a task; a subclass is a frozen dataclass whose fields are made by `option`.

    >>> rg.tasks.LabelsTask.Options(top=2)
    LabelOptions(top=2)
    """

    def __init_subclass__(cls) -> None:
        doc = cls.__doc__
        dataclass(frozen=True, kw_only=True)(cls)
        cls.__doc__ = doc  # a dataclass without one would get its signature

    def __post_init__(self) -> None:
        for x in options_of(type(self)):
            object.__setattr__(self, x.name, x.check(getattr(self, x.name)))

    @classmethod
    def make(cls, owner: str, values: dict[str, Any], *, parse: bool = False) -> "TaskOptions":
        """The options with these values, or with these texts; `owner` is named in messages."""
        known = {x.name: x for x in options_of(cls)}
        for name in values:
            if name not in known:
                hint = suggestion(name, known)
                raise ConfigError(f"option: needs one of the {owner}, got {name!r}{hint}")
        if parse:
            values = {name: known[name].parse(text) for name, text in values.items()}
        return cls(**{name: known[name].check(value) for name, value in values.items()})

    def as_dict(self) -> dict[str, Any]:
        """Names and values, such as for the identity of a job."""
        return {k: str(x) if isinstance(x, Path) else x for k, x in asdict(self).items()}


@cache
def options_of(cls: type[TaskOptions]) -> tuple[Option, ...]:
    """The options that a class declares, in order."""
    hints, options = get_type_hints(cls), list[Option]()
    for x in fields(cls):
        kinds = get_args(hints[x.name])
        is_union = get_origin(hints[x.name]) in (Union, UnionType)
        (hint, *_) = [k for k in kinds if k is not NoneType] if is_union else [hints[x.name]]
        is_list = get_origin(hint) is tuple
        hint = get_args(hint)[0] if is_list else hint
        choices = get_args(hint) if get_origin(hint) is Literal else ()
        facts = {"type": str if choices else hint, "choices": choices, "is_list": is_list}
        facts |= {
            "is_optional": is_union and NoneType in kinds,
            "is_required": x.default is MISSING,
        }
        if x.default is not MISSING:
            facts["default"] = x.default
        declared = vars(x.metadata["option"])
        facts["local"] = declared["local"] or hint is Path  # a request must not name files
        options.append(Option(**declared | {"name": x.name} | facts))
    return tuple(options)


@dataclass(frozen=True, kw_only=True)
class InputKind:
    """A kind of input, as a command, a file job, a request and the page take it."""

    metavar: str = "[INPUT]…"
    help: str = ""
    example: str = ""
    page: ClassVar[str] = "text"  # view of the explorer
    is_file: ClassVar[bool] = False


@dataclass(frozen=True, kw_only=True)
class Text(InputKind):
    """Texts: arguments or lines, and a list in the body of a request.

    Args:
        field, outputs: names of the list in a request, and of that in its response.
        of: the type of one input in a request.
    """

    help: str = "Texts, one file of lines, or - for standard input."
    example: str = "some text"
    field: str = "inputs"
    outputs: str = "outputs"
    of: Any = str


@dataclass(frozen=True, kw_only=True)
class Prompt(Text):
    """One text that is continued, a piece at a time."""

    metavar: str = "PROMPT"
    help: str = "Text to continue; - for standard input."
    example: str = "Once upon"
    field: str = "prompt"


@dataclass(frozen=True, kw_only=True)
class ImageFile(InputKind):
    """Image files: names, or the body of a request."""

    metavar: str = "IMAGE…"
    help: str = "PNG, JPEG and others."
    example: str = "image.png"
    page: ClassVar[str] = "image"
    is_file: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class SoundFile(InputKind):
    """Sound files: names, or the body of a request; live samples where the task can stream."""

    metavar: str = "FILE…|-"
    help: str = "WAV, FLAC or OGG; - for raw 16-bit samples on standard input."
    example: str = "audio.wav"
    page: ClassVar[str] = "sound"
    is_file: ClassVar[bool] = True


class Verb:
    """What a task does: `regard VERB`, `run.VERB`, `POST /VERB`; every `Task` is one.

    A task of the library declares it in a `verb.py`, so that `regard --help` loads no torch.

    >>> rg.tasks.LabelsTask.verb, rg.tasks.LabelsTask.reads.field
    ('label', 'inputs')
    """

    verb: ClassVar[str] = ""
    reads: ClassVar[InputKind] = Text()
    Options: ClassVar[type[TaskOptions]] = TaskOptions
    can_stream: ClassVar[bool] = False  # a piece of output at a time
    hub_tag: ClassVar[str] = ""  # of the Hugging Face Hub

    @classmethod
    def help(cls) -> str:
        """What it does, in sentences."""
        declared = None if cls.Options is TaskOptions else cls.Options.__doc__
        return inspect.cleandoc(declared or cls.__doc__ or f"Apply a run to inputs: {cls.verb}.")


def library_verbs() -> list[type[Verb]]:
    """The verbs that the library declares, in modules named `…verb`; loads no torch.

    >>> [x.verb for x in library_verbs()]
    ['label', 'tag', 'classify', 'generate', 'transcribe', 'translate']
    """
    from regard import tasks

    names = [x.name for x in walk_packages(tasks.__path__, "regard.tasks.")]
    modules = [import_module(x) for x in names if x.endswith("verb")]
    return [
        x
        for module in modules
        for x in vars(module).values()
        if isinstance(x, type)
        and issubclass(x, Verb)
        and x.verb
        and x.__module__ == module.__name__
    ]
