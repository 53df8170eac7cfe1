"""`classify`, as it is declared."""

from pathlib import Path

from regard.tasks.verb import ImageFile, TaskOptions, Verb, option


class ClassifyOptions(TaskOptions):
    """Classify images. Prints one line per prediction: file, class, probability.

    Exit code 1: an image could not be read, or a confidence is low (with a warning). 2: none could
    be read.
    """

    top: int = option(
        default=1, ge=1, served=100, command=3, help="Classes per image, most probable first."
    )
    size: int | None = option(
        default=None,
        served=4096,
        help="Side in pixels to resize images to; that of training if not given.",
    )
    own_size: bool = option(default=False, help="Keep the size of each image.")
    invert: bool = option(default=False, help="Ink is dark on light. Detected for glyphs.")
    overlay: Path | None = option(
        default=None, help="Draw the attention, such as out.png; out-NAME.png for several images."
    )


class Classify(Verb):
    """Classification of images."""

    verb, hub_tag = "classify", "image-classification"
    reads, Options = ImageFile(), ClassifyOptions
