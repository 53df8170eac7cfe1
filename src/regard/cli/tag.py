"""`regard tag`: the words of texts with their tags."""

from regard.cli.apply import Inputs, Options, RunName, print_applied


def tag(name: RunName, inputs: Inputs = None, options: Options = None) -> None:
    """Tag the words of texts. Prints one line per text: word/TAG, or the word alone for the tag O.

    A text is split at spaces and around punctuation.
    """
    print_applied(name, inputs, options, verb="tag")
