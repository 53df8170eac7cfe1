"""`regard classify`: classes of images, with probabilities and attention overlays."""

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.apply import Confidence, Jobs, Out, run_job


def classify(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="Run folder or pretrained model: glyphs.")
    ],
    images: Annotated[list[str], typer.Argument(metavar="IMAGE…", help="PNG, JPEG and others.")],
    top: Annotated[int, typer.Option(help="Classes per image, most probable first.")] = 3,
    size: Annotated[
        int | None,
        typer.Option(help="Side in pixels to resize images to; that of training if not given."),
    ] = None,
    own_size: Annotated[
        bool, typer.Option("--own-size", help="Keep the size of each image.")
    ] = False,
    invert: Annotated[
        bool, typer.Option("--invert", help="Ink is dark on light. Detected for glyphs.")
    ] = False,
    overlay: Annotated[
        Path | None,
        typer.Option(help="Draw the attention, such as out.png; out-NAME.png for several images."),
    ] = None,
    out: Out = None,
    jobs: Jobs = 1,
    confidence: Confidence = False,
) -> None:
    """Classify images. Prints one line per prediction: file, class, probability.

    Exit code 1: an image could not be read, or a confidence is low (with a warning). 2: none could
    be read.
    """
    from regard import runs

    opened = runs.load(run, device="cpu")
    options = {"top": top, "size": size, "own_size": own_size, "invert": invert}
    answers = runs.ImageAnswers(opened, confidence=confidence, overlay=overlay, **options)
    raise typer.Exit(
        run_job(opened, answers, images, out=out, jobs=jobs, verb="classifying", **options)
    )
