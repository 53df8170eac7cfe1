"""`regard classify`: classes of images, with probabilities and attention overlays."""

from pathlib import Path
from typing import Annotated

import typer


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
) -> None:
    """Classify images. Prints one line per prediction: file, class, probability.

    Exit code 1: an image could not be read, or a confidence is low (with a warning). 2: none could
    be read.
    """
    from regard import runs
    from regard.cli.output import exit_code, print_message, progress_bar

    results = runs.classify_files(
        runs.load(run, device="cpu"), images, top=top, size=size, own_size=own_size, invert=invert,
        overlay=overlay,
    )  # fmt: skip
    failed = warnings = 0
    with progress_bar("classifying", len(images), prints_results=True) as advance:
        for result in results:
            for name, probability in result.prediction:
                print(f"{result.path}\t{name}\t{probability:.4f}", flush=True)
            if message := str(result.error or result.warning):
                print_message(message)
            failed += result.error is not None
            warnings += bool(result.warning)
            advance(1)
    raise typer.Exit(exit_code(len(images), failed, warnings))
