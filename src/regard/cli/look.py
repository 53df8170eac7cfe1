"""`regard look`, `regard heads` and `regard verify`: what the attention heads of a model do."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.errors import LookError, counted

Model = Annotated[
    str,
    typer.Argument(
        metavar="RUN|FOLDER",
        help="Run folder, pretrained model, saved model or Hugging Face folder.",
    ),
]
Target = Annotated[str | None, typer.Option(help="Target text of an encoder-decoder.")]
MAX_PATH = 250  # longer inputs are texts: the file system refuses to look for them


def look(
    model: Model,
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="TEXT|FILE|-",
            help="Input text, a file of it, or - for standard input; token ids if there is no "
            "tokenizer. Two texts are compared; so are two models, as RUN|FOLDER RUN|FOLDER TEXT.",
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="HTML page to write; .png, .svg or .pdf for a comparison.")
    ] = Path("report.html"),
    target: Target = None,
    to: Annotated[str | None, typer.Option(help="Target language of a run.")] = None,
    at: Annotated[str, typer.Option(help="Glob over attention sites: *.cross.")] = "*",
    cell: Annotated[
        str | None,
        typer.Option(
            metavar="HEAD,QUERY,KEY",
            help="Instead of a page, print the arithmetic of one weight; indices from 0.",
        ),
    ] = None,
    describe: Annotated[
        bool, typer.Option("--describe", help="Instead of a page, describe every head in words.")
    ] = False,
    query: Annotated[
        int | None,
        typer.Option(
            min=0, help="Instead of a page, list the top keys of this query, trained and untrained."
        ),
    ] = None,
    probe: Annotated[
        bool, typer.Option(help="Also score induction heads on repeated random tokens.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Instead of a page, print a comparison as JSON.")
    ] = False,
    edit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="EDIT",
            help="Edit the model, as in rg.edit: \"drop_head('decoder.1.self', 2)\". Repeatable.",
        ),
    ] = None,
    around: Annotated[
        str | None,
        typer.Option(
            metavar="QUERY,…",
            help="Queries of a long text around which the page has the exact weights.",
        ),
    ] = None,
    image: Annotated[
        Path | None, typer.Option(help="Image before the text, for a model of images and text.")
    ] = None,
) -> None:
    """Write an HTML page about what each attention head attends to, or compare two texts or models.

    regard look FOLDER "the cat sat" writes a page about one text.

    regard look FOLDER "the cat sat" "the old cat sat" compares two texts, head by head.

    regard look FOLDER OTHER_FOLDER "the cat sat" compares two models or checkpoints.

    regard look FOLDER picture.png writes a page about a vision model.
    """
    from regard import runs
    from regard.cli.apply import read_input
    from regard.cli.output import progress_bar, report_written
    from regard.runs.apply.look import is_vision_folder, parse_cell, parse_queries, picture_report

    text, *others = inputs
    only = {"cell": cell, "describe": describe, "query": query, "probe": probe}
    only |= {"around": around, "edit": edit or None}
    wrong = next((name for name, value in only.items() if value not in (None, False)), "")
    if image is not None or is_vision_folder(model):
        if wrong or others or as_json or target or to or at != "*":
            got = f"{len(others) + 1} inputs or --{wrong or 'json, --target, --to, --at'}"
            raise LookError(f"image: needs one image, at most one text and --out alone, got {got}")
        with silence_transformers(), progress_bar("looking"):
            after = None if image is None else read_input(text)
            report = picture_report(Path(model), image or Path(text), after, out)
    elif others:
        if wrong:
            raise LookError(f"{wrong}: needs one text, got two to compare; try without --{wrong}")
        compare(model, inputs, out, as_json, target=target, to=to, at=at)
        return
    elif as_json:
        raise LookError("json: needs two texts or two models to compare, got one text")
    else:
        position = None if cell is None else parse_cell(cell)
        queries = () if around is None else parse_queries(around)
        with silence_transformers(), progress_bar("looking"):
            report = runs.look_report(
                runs.load(model, device="cpu").text_model, read_input(text), target=target, to=to,
                at=at, out=out, cell=position, describe=describe, query=query, probe=probe,
                name=model, around=queries, edits="; ".join(edit or ()),
            )  # fmt: skip
    report_written(out, report.text)
    for name, reason in report.skipped.items():
        report_written(out, f"not recorded: {name}, {reason}")


def compare(model: str, inputs: list[str], out: Path, as_json: bool, **options: Any) -> None:
    """Compare two texts, or two models on one text: print a table and write a page, or JSON."""
    import json

    from regard import runs
    from regard.cli.apply import read_input
    from regard.cli.output import progress_bar, report_written
    from regard.inspection import write_comparison

    if len(inputs) > 2:
        raise LookError(f"INPUT: needs one or two, got {len(inputs)}; try quotes around a text")
    with silence_transformers(), progress_bar("comparing"):
        names = [model, inputs[0]] if is_model(inputs[0]) else [model]
        models = [runs.load(name, device="cpu").text_model for name in names]
        first, second = map(read_input, inputs if len(models) == 1 else [inputs[1]] * 2)
        named = (first, second) if len(models) == 1 else (model, inputs[0])
        both = models[0], models[-1]
        comparison = runs.compare_texts(both, (first, second), names=named, **options)
        if not as_json:
            write_comparison(comparison, out)
    if as_json:
        print(json.dumps(comparison.to_dicts(), indent=1, ensure_ascii=False))
        return
    report_written(out, f"{comparison}\n{out}: maps and differences")


def heads(
    model: Model,
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE|FOLDER",
            help="Text files, or folders of .txt files, to search for examples; without any, heads "
            "are scored on repeated random tokens.",
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            help="Score: induction, previous, duplicate, retrieval or sink. For a search also a "
            "statistic of each query, such as entropy. By default induction for a search, else all."
        ),
    ] = None,
    at: Annotated[str, typer.Option(help="Glob over attention sites.")] = "*",
    top: Annotated[int, typer.Option(min=1, help="Heads per score; examples per head.")] = 3,
    max_length: Annotated[int, typer.Option(min=2, help="Tokens per window of a text.")] = 256,
    as_json: Annotated[bool, typer.Option("--json", help="Print all as JSON.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Heat map of the scores: .png, .svg or .pdf.")
    ] = None,
) -> None:
    """Score every attention head, or find text on which each head shows a pattern most."""
    import json
    import sys

    from regard import inspection, runs
    from regard.errors import ShapeError

    if files and out:
        raise ShapeError("out: needs scores to draw, got files to search; try --json")
    with silence_transformers():
        text_model = runs.load(model, device="cpu").text_model
        if files:
            search = runs.search_files(
                text_model, files, by or "induction", at=at, count=top,
                max_length=max_length, progress=sys.stderr.isatty(),
            )  # fmt: skip
            print(
                json.dumps(search.to_dicts(), indent=1, ensure_ascii=False) if as_json else search
            )
            return
        table = inspection.score_heads(text_model.model, at=at)
    names = [by] if by else [*table.columns.values()]
    best = {name: table.top(top, by=name) for name in names}
    if out:
        inspection.draw.head_scores(table, by, path=out)
    if as_json:
        print(json.dumps(table.to_dicts(), indent=1))
        return
    for name, rows in best.items():
        print(f"{name}:\n{rows}\n")
    if out:
        print(f"{out}: {counted(len(table), 'head')}")


def verify(
    model: Model,
    text: Annotated[
        str | None, typer.Option(help="Text to run on; token ids if there is no tokenizer.")
    ] = None,
    target: Target = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare what Regard computes on a model with brute force; exit code 1 if anything is off."""
    import json

    from regard import runs
    from regard.cli.output import progress_bar

    with silence_transformers(), progress_bar("verifying"):
        result = runs.verify_text(runs.load(model, device="cpu").text_model, text, target=target)
    print(json.dumps(result.to_dicts(), indent=1) if as_json else result)
    if not result.passed:
        raise typer.Exit(1)


def is_model(text: str) -> bool:
    """Whether an input names a model: a folder, or one that is missing beside others, or a name.

    >>> is_model("phrases"), is_model("and/or"), is_model("the cat sat on/off")
    (True, False, False)
    """
    from regard.runs.loading import holds_model, pretrained_names

    if len(text) > MAX_PATH or "\n" in text:
        return False
    is_path = os.sep in text and not any(map(str.isspace, text)) and Path(text).parent.is_dir()
    is_path = is_path and not Path(text).is_file()
    is_folder = holds_model(Path(text)) or (Path(text) / "config.json").is_file()
    return is_path or is_folder or text in pretrained_names()


@contextmanager
def silence_transformers() -> Iterator[None]:
    """Hide the progress bars and warnings of transformers; errors still appear."""
    try:
        from transformers.utils import logging
    except ImportError:  # an extra that a model of ours does not need
        yield
        return
    verbosity, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if has_bars:
            logging.enable_progress_bar()
