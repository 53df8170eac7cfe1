"""`regard translate`: texts, lines, tables and catalogs in other languages."""

from pathlib import Path
from typing import Annotated

import typer


def translate(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="The folder of a run, or a specimen's name.")
    ],
    text: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT…|FILE|-", help="Texts, or a file of them, or standard input."),
    ] = None,
    to: Annotated[str, typer.Option(help="Languages, such as de,fr,cs.")] = "",
    out: Annotated[
        Path | None, typer.Option(help="Where to write; standard output if not given.")
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--format", help="lines, tsv or po; by the end of the file's name if not given."
        ),
    ] = None,
    beam: Annotated[
        int | None, typer.Option(help="How many answers are kept in the search; 1 is greedy.")
    ] = None,
    best: Annotated[
        int, typer.Option("--n-best", help="How many answers to give, with their scores.")
    ] = 1,
    align: Annotated[
        bool, typer.Option("--align", help="Say which word comes from which, with its weight.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw that for one text and language, such as out.png.")
    ] = None,
    cost: Annotated[
        bool, typer.Option("--cost", help="Say what reading once for all languages has saved.")
    ] = False,
) -> None:
    """Translate texts, a file of lines, the first column of a .tsv, or what a .po has untranslated.

    Lines become lines, one column a language; a .tsv gets one column more a language; a .po gets
    its untranslated and fuzzy messages filled and marked fuzzy. What could not be translated is
    left empty (in a .po as it was) and said, and the exit code is then 1. So it is where the
    calibrated confidence of an answer is below the run's threshold; the answer is printed, with a
    warning on standard error.
    """
    from regard import runs
    from regard.runs.jobs.translate import TranslateJob, TranslationRequest

    asked = TranslationRequest.parse(text or [], kind, out)
    opened = runs.load_run(runs.find_run(run))
    languages = [name.strip() for name in to.split(",") if name.strip()]
    interpreter = runs.TranslationPipeline(opened, languages, beam_width=beam, n_best=best)
    job = TranslateJob(asked, interpreter, align=align, plot=plot)
    job.run()
    if cost:
        job.print_cost()
    job.print_summary()
    if job.problems or job.unsure_count:
        raise typer.Exit(1)
