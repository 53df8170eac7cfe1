"""`label` and `tag`, as they are declared."""

from typing import Literal

from regard.tasks.verb import TaskOptions, Text, Verb, option


class LabelOptions(TaskOptions):
    """Classify texts. Prints one line per text: classes with probabilities, separated by tabs."""

    top: int | None = option(
        default=None, ge=1, help="Classes per text, most probable first; all if unset."
    )


class Label(Verb):
    """Classification of texts."""

    verb, hub_tag, Options = "label", "text-classification", LabelOptions


class TagOptions(TaskOptions):
    """Tag the words of texts. Prints one line per text: word/TAG, or the word alone for the tag O.

    A text is split into words as the data of the run is.
    """

    word_split: Literal["punctuation", "edges", "sentence", "spaces"] | None = option(
        default=None, help="Split texts otherwise; spaces takes words between spaces as they are."
    )


class Tag(Verb):
    """Tagging of words."""

    verb, hub_tag, Options = "tag", "token-classification", TagOptions
    reads = Text(of=str | list[str])
