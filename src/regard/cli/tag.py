"""`regard tag`: the words of texts with their tags."""

from regard.cli.apply import Inputs, Options, RunName, apply_any
from regard.cli.jobs import Confidence, Format, Jobs, Out


def tag(
    name: RunName,
    inputs: Inputs = None,
    options: Options = None,
    out: Out = None,
    file_format: Format = None,
    jobs: Jobs = 1,
    confidence: Confidence = False,
) -> None:
    """Tag the words of texts. Prints one line per text: word/TAG, or the word alone for the tag O.

    A text is split at spaces and around punctuation.
    """
    apply_any(name, inputs, options, "tag", out, file_format, jobs, confidence)
