"""`regard tokenizer`: train, show and compare tokenizers."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from regard.data import Tokenizer

tokenizer = typer.Typer(
    help="Train, show and compare tokenizers.", no_args_is_help=True, add_completion=False
)

Name = Annotated[
    str,
    typer.Argument(
        metavar="TOKENIZER|RUN", help="tokenizer.json, a SentencePiece .model, or a run."
    ),
]
Files = Annotated[list[Path], typer.Argument(metavar="FILE…", help="Text files or folders.")]


@tokenizer.command()
def train(
    files: Files,
    kind: Annotated[
        str, typer.Option("--type", help="bpe, unigram, words, characters or bytes.")
    ] = "bpe",
    vocab_size: Annotated[
        int, typer.Option(help="The most ids, of bpe, unigram and words.")
    ] = 8000,
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write.")] = Path(
        "tokenizer.json"
    ),
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Train a tokenizer on text files, for `tokenizer_file` of recipes.

    Example: regard tokenizer train corpus.txt --type unigram --vocab-size 8000 -o tokenizer.json
    """
    from regard.cli.output import report_written
    from regard.data import train_tokenizer
    from regard.errors import FileError

    if out.exists() and not force:
        raise FileError(f"{out}: needs to be a new file, got an existing one; try --force")
    trained = train_tokenizer(kind, _lines(files), vocab_size)
    trained.save(out)
    report_written(out, f"{out}: {kind}, {trained.vocab:,} ids")


@tokenizer.command()
def show(name: Name, text: Annotated[str, typer.Argument(help="Text to split.")]) -> None:
    """Show the tokens of a text with their ids and where they begin and end in the text."""
    import sys

    from regard.data import normalize_text

    loaded = _load(name)
    roles = {"PAD": loaded.pad_id, "BOS": loaded.bos_id, "EOS": loaded.eos_id, "UNK": loaded.unk_id}
    special = ", ".join(f"{role} {i} {loaded.id_to_token(i)}" for role, i in roles.items())
    print(f"{type(loaded).__name__}, {loaded.vocab:,} ids: {special}")
    if loaded.languages:
        languages = (f"{language} {loaded.language_id(language)}" for language in loaded.languages)
        print(f"languages: {', '.join(languages)}")
    text = normalize_text(text, loaded.normalizers)
    ids = loaded.encode(text)
    tokens = [loaded.id_to_token(i) for i in ids]
    if sys.stdout.isatty():
        print(
            "".join(f"\x1b[{7 if n % 2 else 27}m{token}" for n, token in enumerate(tokens))
            + "\x1b[0m"
        )
    else:
        print("|".join(tokens))
    for token, i, (start, end) in zip(tokens, ids, loaded.offsets(text), strict=True):
        print(f"{i:>7}  {f'{start}-{end}':<9}  {token!r}")


@tokenizer.command()
def stats(
    names: Annotated[
        list[str],
        typer.Argument(metavar="TOKENIZER|RUN…", help="Tokenizers, one line of numbers each."),
    ],
    files: Annotated[
        list[Path], typer.Option("--text", metavar="FILE", help="Text file or folder to split.")
    ],
) -> None:
    """Compare tokenizers on text files: tokens per word and byte, unknown tokens, longest line.

    Example: regard tokenizer stats tokenizer.json phrases --text corpus.txt
    """
    from regard.data import measure_tokenizer

    print("    ids    tokens  per word  per byte  unknown  longest line")
    for name in names:
        loaded = _load(name)
        x = measure_tokenizer(loaded, _lines(files))
        print(
            f"{loaded.vocab:>7}  {x.tokens:>8}  {x.tokens_per_word:>8.2f}  "
            f"{x.tokens_per_byte:>8.3f}  {x.unknown_share:>7.2%}  {x.longest:>12}  {name}"
        )


def _load(name: str) -> "Tokenizer":
    from regard.data import Tokenizer
    from regard.runs.loading import find_run

    return Tokenizer.load(name if Path(name).is_file() else find_run(name))


def _lines(files: list[Path]) -> Iterator[str]:
    from regard.data import TextFiles

    for document in TextFiles(files, files, files, on_error="raise").documents("train"):
        yield from document.text.splitlines(keepends=True)
