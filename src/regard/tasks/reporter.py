"""What jobs share: a reporter for messages and progress, and the low-confidence warning."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol, runtime_checkable


@runtime_checkable
class Reporter(Protocol):
    """Receives the messages and the progress of a job while it runs.

    >>> isinstance(SilentReporter(), Reporter)
    True
    """

    def message(self, text: str) -> None:
        """A line for people: a warning, a problem or a note."""

    def progress(
        self, description: str, total: float | None = None, *, prints_results: bool = False
    ) -> AbstractContextManager[Callable[[float], None]]:
        """A context whose value is called with each amount of work done.

        `prints_results`: results are printed to the terminal while the job runs.
        """
        return nullcontext(lambda amount: None)


class SilentReporter(Reporter):
    """A reporter that discards everything."""


def confidence_warning(
    name: str | Path, confidence: float, threshold: float, consequence: str
) -> str:
    """The warning about a prediction whose calibrated confidence is below the threshold.

    >>> confidence_warning("a.png", 0.2, 0.5, "the class may be wrong")
    'warning: a.png: confidence 0.20 is below 0.50; the class may be wrong'
    """
    return f"warning: {name}: {low_confidence(confidence, threshold)}; {consequence}"


def low_confidence(confidence: float, threshold: float) -> str:
    """The reason of a warning."""
    return f"confidence {confidence:.2f} is below {threshold:.2f}"
