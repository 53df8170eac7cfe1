"""`regard label`: the classes of texts, with probabilities."""

from regard.cli.apply import Inputs, Options, RunName, apply_any
from regard.cli.jobs import Confidence, Format, Jobs, Out


def label(
    name: RunName,
    inputs: Inputs = None,
    options: Options = None,
    out: Out = None,
    file_format: Format = None,
    jobs: Jobs = 1,
    confidence: Confidence = False,
) -> None:
    """Classify texts. Prints one line per text: classes with probabilities, separated by tabs.

    `-o top=1` prints the most probable class only.
    """
    apply_any(name, inputs, options, "label", out, file_format, jobs, confidence)
