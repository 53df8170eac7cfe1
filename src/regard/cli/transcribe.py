"""`regard transcribe`: the text that is said in files, or in sound that is still coming."""

from typing import Annotated

import typer


def transcribe(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="The folder of a run, or a specimen: morse.")
    ],
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE…|-", help="WAV, FLAC or OGG; - for 16-bit samples on standard input."
        ),
    ],
    rate: Annotated[
        int | None,
        typer.Option(help="Samples a second on standard input; the model's if left out."),
    ] = None,
    beam: Annotated[
        int, typer.Option(help="How many texts are kept in the search; 1 is the likeliest path.")
    ] = 1,
    normalize: Annotated[
        bool, typer.Option(help="Bring soft or clean sound to the level and noise of training.")
    ] = True,
    chunk: Annotated[
        float, typer.Option(help="Seconds of live sound that are heard together.")
    ] = 0.1,
) -> None:
    """Write down what is said in files, or live, for example with arecord.

    arecord -q -t raw -f S16_LE -r 8000 | regard transcribe morse -

    Text goes to standard output as it is heard: a line a file, with its name where there are
    several; live, a line a word or what was said before a pause, and on a terminal one line that
    grows. All else goes to standard error. What could not be heard, or not all of it, is said, and
    the exit code is then 1; 2 if nothing could.
    """
    from regard import runs
    from regard.runs.jobs.transcribe import TranscribeJob

    job = TranscribeJob(
        runs.load_run(runs.find_run(run)), beam_width=beam, normalize_peak=normalize
    )
    if "-" in paths:
        job.live(rate, chunk, is_only_input=len(paths) == 1)
    else:
        job.files(paths)
    if job.exit_code:
        raise typer.Exit(job.exit_code)
