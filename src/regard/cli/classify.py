"""`regard classify`: what pictures show, with probabilities, and what the model looked at."""

from pathlib import Path
from typing import Annotated

import typer


def classify(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="The folder of a run, or a specimen: glyphs.")
    ],
    images: Annotated[list[str], typer.Argument(metavar="IMAGE…", help="PNG, JPEG and others.")],
    top: Annotated[int, typer.Option(help="How many classes to tell, the likeliest first.")] = 3,
    size: Annotated[
        int | None,
        typer.Option(help="Make pictures squares of so many pixels; as in training if left out."),
    ] = None,
    own_size: Annotated[
        bool, typer.Option("--own-size", help="Leave pictures as large as they are.")
    ] = False,
    invert: Annotated[
        bool, typer.Option("--invert", help="Ink is dark on light paper. Detected for glyphs.")
    ] = False,
    overlay: Annotated[
        Path | None,
        typer.Option(help="Draw what it looked at, such as out.png; out-NAME.png for several."),
    ] = None,
) -> None:
    """Say what pictures show: a line a class, the picture's name, the class, its probability.

    A picture that cannot be read is named, and the others are still answered; the exit code is
    then 1, and 2 if none could be. It is 1 too after a warning that the confidence is low.
    """
    from regard import runs
    from regard.runs.jobs.classify import ClassifyJob

    job = ClassifyJob(runs.load_run(runs.find_run(run)), top=top, size=size, own_size=own_size)
    job.run(images, invert=invert, overlay=overlay)
    if job.exit_code:
        raise typer.Exit(job.exit_code)
