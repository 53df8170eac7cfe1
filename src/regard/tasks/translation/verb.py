"""`translate`, as it is declared."""

from pathlib import Path

from regard.tasks.verb import TaskOptions, Text, Verb, option


class TranslateOptions(TaskOptions):
    """Translate texts, the lines of a file, the first column of a .tsv, or a .po catalog.

    Lines become lines, with one column per language; a .tsv gets one more column per language; in
    a .po the untranslated and fuzzy messages are filled and marked fuzzy. Exit code 1: a text could
    not be translated (it is left empty, in a .po unchanged), or a confidence is low; both are
    reported on standard error. After Ctrl-C the same command continues an output file.
    """

    to: tuple[str, ...] = option(default=(), help="Target languages, such as de,fr,cs.")
    beam_width: int | None = option(
        default=None, ge=1, served=16, flag="beam", help="Beam width; 1 is greedy."
    )
    length_penalty: float | None = option(
        default=None, help="Of the beam; higher favours longer answers."
    )
    max_new_tokens: int | None = option(
        default=None, ge=1, served=4096, help="Most tokens of an answer."
    )
    n_best: int = option(default=1, served=16, help="Translations per text, with their scores.")
    align: bool = option(
        default=False, local=True, help="Print the word alignment with its weights."
    )
    plot: Path | None = option(
        default=None, help="Draw the alignment of one text, such as out.png."
    )
    cost: bool = option(
        default=False, local=True, help="Print what encoding once for all languages saves."
    )


class Translate(Verb):
    """Translation."""

    verb, hub_tag = "translate", "translation"
    reads = Text(
        metavar="TEXT…|FILE|-", help="Texts, one file, or - for standard input.", field="texts",
        outputs="translations",
    )  # fmt: skip
    Options = TranslateOptions
