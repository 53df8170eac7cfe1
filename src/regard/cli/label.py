"""`regard label`: the classes of texts, with probabilities."""

from regard.cli.apply import Inputs, Options, RunName, print_applied


def label(name: RunName, inputs: Inputs = None, options: Options = None) -> None:
    """Classify texts. Prints one line per text: classes with probabilities, separated by tabs.

    `-o top=1` prints the most probable class only.
    """
    print_applied(name, inputs, options, verb="label")
