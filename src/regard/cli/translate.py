"""`regard translate`: texts, lines, tables and catalogs in other languages."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from regard.runs import TranslationJob


def translate(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run folder or pretrained model.")],
    text: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT…|FILE|-", help="Texts, one file, or - for standard input."),
    ] = None,
    to: Annotated[str, typer.Option(help="Target languages, such as de,fr,cs.")] = "",
    out: Annotated[
        Path | None, typer.Option(help="Output file; standard output if not given.")
    ] = None,
    file_format: Annotated[
        str | None,
        typer.Option("--format", help="lines, tsv or po; by the file's suffix if not given."),
    ] = None,
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
    reported on standard error.
    """
    from regard import runs
    from regard.cli.output import exit_code, print_message
    from regard.runs.apply.translate_files import format_shared_cost

    job = _job(text or [], file_format, out, align, plot)
    languages = [name.strip() for name in to.split(",") if name.strip()]
    pipeline = runs.TranslationPipeline(runs.load(run), languages, beam_width=beam, n_best=n_best)
    report = job.run(pipeline)
    if cost and (text_cost := format_shared_cost(pipeline)):
        print_message(text_cost)
    raise typer.Exit(exit_code(0, report.problems, report.unsure))


def _job(
    arguments: list[str], file_format: str | None, out: Path | None, align: bool, plot: Path | None
) -> "TranslationJob":
    import sys
    from functools import partial

    from regard.cli.output import TerminalReporter
    from regard.errors import ConfigError, FileError
    from regard.files import file_descriptor
    from regard.runs import TranslationJob

    if not arguments and sys.stdin.isatty():
        raise ConfigError("text: needs a text, a file or - for standard input, got none")
    job = partial(
        TranslationJob,
        out=sys.stdout if out is None or file_descriptor(out) == 1 else out,
        file_format=file_format,
        align=align,
        plot=plot,
        reporter=TerminalReporter(),
    )
    if arguments in ([], ["-"]):
        stdin: Any = sys.stdin.buffer
        return job(file=stdin)
    file = Path(arguments[0])
    if len(arguments) == 1 and _is_file(file):
        return job(file=file)
    texts = job(texts=arguments)
    if len(arguments) == 1 and (file.suffix in (".po", ".tsv", ".txt") or file_format is not None):
        raise FileError(f"{file}: needs to be a file, got no such file")
    return texts


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a text too long to be a file name
        return False
