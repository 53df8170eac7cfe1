"""Exceptions raised to callers.

RegardError
├── ShapeError    sizes that do not fit
├── ConfigError   a model or recipe that cannot be built
├── BackendError  a backend requested by name that cannot run here
├── LookError     a model, or a part of it, that cannot be inspected
├── TrainError    a training run that cannot continue
├── WorkError     a problem that cannot be solved step by step
└── FileError     a file that is missing, corrupt or of another format

A message reads `<argument>: needs <rule>, got <value>; try <way out>`.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

LONG_WORD = re.compile(r"\S{300,}")  # a value of somebody's file
MAX_CHARS = 3000  # of a message; what is between its ends is left out
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class RegardError(ValueError):
    """Base class: a caller's mistake, described in one line.

    Values of a file are part of a message: control characters are escaped, endless words shortened.

    >>> print(RegardError("name: needs a text, got " + chr(27)))
    name: needs a text, got \\x1b
    """

    def __str__(self) -> str:
        text = LONG_WORD.sub(lambda word: f"{word[0][:80]}…{word[0][-40:]}", super().__str__())
        text = CONTROL.sub(lambda sign: repr(sign[0])[1:-1], text)
        half = MAX_CHARS // 2
        return text if len(text) <= MAX_CHARS else f"{text[:half]} … {text[-half:]}"


class ShapeError(RegardError):
    """Sizes that do not fit."""


class ConfigError(RegardError):
    """A model or recipe that cannot be built."""


class BackendError(RegardError):
    """A backend requested by name that cannot run here, with the reason."""


class LookError(RegardError):
    """A model, or a part of it, that cannot be inspected, with the reason."""


class TrainError(RegardError):
    """A training run that cannot continue, with the step and what to do."""


class RankLostError(TrainError):
    """A process of a distributed training is gone."""


class WorkError(RegardError):
    """A problem that cannot be solved step by step as stated."""


class FileError(RegardError):
    """A file that is missing, corrupt or of another format."""


def suggestion(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: "; try" the most similar known one, if any.

    >>> suggestion("phrase", ["phrases", "morse"])
    '; try phrases'
    >>> suggestion("colour", ["lr", "steps"])
    ''
    """
    close = get_close_matches(name, list(known), 1)
    return f"; try {close[0]}" if close else ""


def counted(count: int, noun: str) -> str:
    """A number and a noun, such as in a summary.

    >>> counted(1, "linear mixer"), counted(2000, "head"), counted(3, "query")
    ('1 linear mixer', '2,000 heads', '3 queries')
    """
    many = f"{noun[:-1]}ies" if noun.endswith("ry") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else many}"


def check_choice(
    name: str, value: object, known: Collection[str], kind: type[RegardError] = ConfigError
) -> None:
    """Raise an error of this kind unless the value of an argument is one of those known.

    >>> check_choice("norm", "mid", ("pre", "post"))
    Traceback (most recent call last):
        ...
    regard.errors.ConfigError: norm: needs pre or post, got 'mid'
    """
    if value not in tuple(known):
        rule = " or ".join(known) if len(known) == 2 else f"one of {', '.join(known) or 'none'}"
        hint = suggestion(str(value), known)
        raise kind(f"{name}: needs {rule}, got {value!r:.80}{hint}")


@contextmanager
def library_errors(place: object, rule: str) -> Iterator[None]:
    """Report whatever a library raises on the values of a damaged folder as one line.

    >>> with library_errors("folder", "a model"):
    ...     {"a": 1}["b"]
    Traceback (most recent call last):
        ...
    regard.errors.FileError: folder: needs a model, got 'b'
    """
    try:
        yield
    except (RegardError, MemoryError):
        raise
    except BaseException as error:  # any kind: its code takes the values of JSON as they come
        # a panic of the tokenizers library, which is written in Rust, is no Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        line = " ".join(str(error).split()) or type(error).__name__
        raise FileError(f"{place}: needs {rule}, got {line:.200}") from error
