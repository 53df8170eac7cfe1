"""What can go wrong for a caller.

RegardError
├── ShapeError    sizes that do not meet
├── ConfigError   a model or recipe that cannot be built
├── BackendError     a form asked for by name that cannot run here
├── LookError     a model, or a part of it, that cannot be seen
├── TrainError    a training that cannot go on
│   └── RankLostError    a process of a distributed training that is gone
├── WorkError     a problem that cannot be worked by hand
└── FileError     a file that is missing, damaged or foreign

A message reads `<argument>: needs <rule>, got <value>; try <way out>`.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class RegardError(ValueError):
    """A caller's mistake, said in one line."""


class ShapeError(RegardError):
    """Sizes that do not meet."""


class ConfigError(RegardError):
    """A model or recipe that cannot be built as asked."""


class BackendError(RegardError):
    """A form asked for by name that cannot run here, with the reason."""


class LookError(RegardError):
    """A model, or a part of it, that cannot be seen, with the reason."""


class TrainError(RegardError):
    """A training that cannot go on, with the step and what to do."""


class RankLostError(TrainError):
    """A process of a distributed training that is gone."""


class WorkError(RegardError):
    """A problem that cannot be worked by hand as it is told."""


class FileError(RegardError):
    """A file that is missing, damaged or not ours."""


def suggestion(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The end of a message about an unknown name: the known one that is most like it, if any is.

    >>> suggestion("phrase", ["phrases", "morse"])
    '; try phrases'
    """
    close = get_close_matches(name, list(known), 1, cutoff)
    return f"; try {close[0]}" if close else ""
