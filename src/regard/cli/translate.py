"""`regard translate`: texts, lines, tables and catalogs in other languages."""

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.apply import Confidence, Format, Jobs, Out, read_arguments, run_job


def translate(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run folder or pretrained model.")],
    text: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT…|FILE|-", help="Texts, one file, or - for standard input."),
    ] = None,
    to: Annotated[str, typer.Option(help="Target languages, such as de,fr,cs.")] = "",
    out: Out = None,
    file_format: Format = None,
    jobs: Jobs = 1,
    confidence: Confidence = False,
    beam: Annotated[int | None, typer.Option(help="Beam width; 1 is greedy.")] = None,
    n_best: Annotated[int, typer.Option(help="Translations per text, with their scores.")] = 1,
    align: Annotated[
        bool, typer.Option("--align", help="Print the word alignment with its weights.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the alignment of one text, such as out.png.")
    ] = None,
    cost: Annotated[
        bool, typer.Option("--cost", help="Print what encoding once for all languages saves.")
    ] = False,
) -> None:
    """Translate texts, the lines of a file, the first column of a .tsv, or a .po catalog.

    Lines become lines, with one column per language; a .tsv gets one more column per language; in
    a .po the untranslated and fuzzy messages are filled and marked fuzzy. Exit code 1: a text could
    not be translated (it is left empty, in a .po unchanged), or a confidence is low; both are
    reported on standard error. After Ctrl-C the same command continues an output file.
    """
    from regard import runs
    from regard.cli.output import TerminalReporter, print_message
    from regard.runs.apply.translate import format_shared_cost

    given = read_arguments(text or [], file_format)
    languages = [name.strip() for name in to.split(",") if name.strip()]
    opened = runs.load(run)
    pipeline = runs.TranslationPipeline(opened, languages, beam_width=beam, n_best=n_best)
    answers = runs.TranslationAnswers(
        pipeline, confidence=confidence, by_language="inputs" in given, align=align, plot=plot,
        reporter=TerminalReporter(),
    )  # fmt: skip
    code = run_job(
        opened, answers, given, out=out, file_format=file_format, jobs=jobs,
        verb="translating", to=pipeline.languages, beam=beam, n_best=n_best, align=align,
    )  # fmt: skip
    if cost and (text_cost := format_shared_cost(pipeline)):
        print_message(text_cost)
    raise typer.Exit(code)
