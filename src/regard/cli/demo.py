"""`regard demo`: train a translator, evaluate it, and inspect its attention heads."""

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from regard.data import Pair
    from regard.runs import Run

SHOWN = 12  # translations: the first examples of the test split, not selected
HEADS_PAGE = "heads.html"


def demo(
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override a setting of the phrases recipe: steps=500."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Run folder; an interrupted run is resumed. A new one if not given."),
    ] = None,
) -> None:
    """Train a small translator, evaluate it, inspect it, and write its pages."""
    import time

    from rich.console import Console

    from regard import runs, tasks
    from regard.errors import ConfigError
    from regard.train.process import format_duration

    started, console = time.monotonic(), Console(highlight=False, soft_wrap=True)
    folder = out or runs.new_run_folder("runs", "demo")
    is_new = not (folder / "recipe.json").exists()
    how_to_continue = f"; regard demo --out {folder} continues from there"
    try:
        if is_new:
            recipe = runs.override_settings(tasks.recipe("phrases"), settings or [])
        elif settings:
            raise ConfigError(
                f"set: needs a new run, got {folder}, whose settings are fixed; try another --out"
            )
        else:
            recipe = runs.read_recipe(folder)
        _print_introduction(console, recipe, folder)
        outcome = runs.fit(recipe, folder, show=True) if is_new else runs.fit(folder, show=True)
        if outcome.signal is not None:
            print(f"{folder}: saved at step {outcome.step}{how_to_continue}")
            raise typer.Exit(128 + outcome.signal)
        run = runs.load_run(folder)
        _print_scores(console, run)
        _print_heads(console, run, _print_translations(console, run))
    except KeyboardInterrupt:
        if (folder / "recipe.json").exists():
            print(f"{folder}: stopped{how_to_continue}")
        raise
    console.print(f"\n[bold]{folder / 'report.html'}[/] is the report, for any browser")
    console.print(f"[bold]{folder / HEADS_PAGE}[/] shows what each head attends to")
    console.print(
        f"[bold]{command_name()} serve {folder} --open[/] opens a page that shows it think"
    )
    console.print(f"total time {format_duration(time.monotonic() - started)}")


def command_name() -> str:
    """How `regard` is called here: by its name if the shell finds it, else by its path."""
    import os
    import shutil
    import sys

    called = sys.argv[0]
    if shutil.which("regard") or not os.path.isfile(called):
        return "regard"
    return os.path.relpath(called)


def _print_introduction(console: "Console", recipe: Any, folder: Path) -> None:
    """Print the task, the data and the model."""
    data, model = recipe.data, recipe.model
    targets = [language for language in data.languages if language not in data.source_languages]
    _heading(console, "A translator, trained from scratch")
    console.print(
        f"{' '.join(data.source_languages)} → {' '.join(targets)}: {', '.join(data.kinds)}, "
        f"generated from Unicode CLDR; test examples are never trained on.\n"
        f"{model.layers} + {model.decoder_layers} layers, dim {model.dim}, {model.heads} heads; "
        f"{recipe.train.steps} updates. Ctrl-C saves a checkpoint. The run is in {folder}"
    )


def _print_scores(console: "Console", run: "Run") -> None:
    """Print the scores on the test split."""
    scores, count = run.result["test"], run.data.test_size
    _heading(console, f"On {count} held-out examples")
    console.print(
        f"[bold]{100 * scores['exact']:.1f}%[/] exact match; "
        f"BLEU {scores['bleu']:.1f}\n{scores['signature']}\n"
        f"{sum(p.numel() for p in run.model.parameters()):,} parameters, "
        f"trained in {run.result['seconds']:.0f} s"
    )


def _print_translations(console: "Console", run: "Run") -> list[tuple["Pair", str]]:
    """Print the first examples of the test split with their translations."""
    from rich.table import Table
    from rich.text import Text

    from regard.data import Pair

    data = run.data
    pairs = list(islice(data.source(SHOWN).examples("test", 0), SHOWN))
    translations = list(zip(pairs, _translate(run, pairs), strict=True))
    _heading(console, f"The first {len(translations)} of them, not selected")
    table = Table(box=None, pad_edge=False, show_header=False)
    for pair, text in translations:
        is_correct = data.is_correct(text, pair.target)
        mark = "✓" if is_correct else "✗"
        table.add_row(pair.language, Text(pair.source), mark, Text(text))
        if not is_correct:
            table.add_row("", "", "", Text(f"reference: {pair.target}", style="dim"))
    console.print(table)
    source = pairs[0].source
    targets = [x for x in data.languages if x not in data.source_languages]
    texts = _translate(run, [Pair(source, "", language) for language in targets])
    console.print(Text(f"\n{source}", style="bold"))
    console.print(Text("   ".join(f"{x} {text}" for x, text in zip(targets, texts, strict=True))))
    return translations


def _translate(run: "Run", pairs: "list[Pair]") -> list[str]:
    from regard.tasks import translate_texts

    texts, languages = [pair.source for pair in pairs], [pair.language for pair in pairs]
    return translate_texts(run.model, run.tokenizer, texts, languages, run.data.search)


def _print_heads(console: "Console", run: "Run", translations: list[tuple["Pair", str]]) -> None:
    """Print the type of every head on one phrase and its word alignment; write the page."""
    from rich.table import Table
    from rich.text import Text

    from regard.inspection import write_report
    from regard.runs import align, record_translation

    correct = [pair for pair, text in translations if run.data.is_correct(text, pair.target)]
    first, text = translations[0]
    pair = max(correct, key=lambda pair: len(pair.target), default=None)
    pair = pair or first._replace(target=text or first.target)
    sight = record_translation(run.model, run.tokenizer, pair)
    _heading(console, f"Attention heads while it writes “{pair.target}”")
    table = Table(box=None, pad_edge=False)
    for column, least in (("attention", 15), ("head", 4), ("is", 11), ("because", 0)):
        table.add_column(column, min_width=least)
    for row in sight.heads():
        name = row.site if row.head == 0 else ""
        table.add_row(name, str(row.head), row.type, Text(row.reason, style="dim"))
    console.print(table)
    alignment = align(run.model, run.tokenizer, pair)
    _heading(console, f"Word alignment: {alignment.site.name}, head {alignment.head}")
    for link in alignment.links:
        console.print(Text(f"“{link.target}” attends to “{link.source}” with {link.weight:.2f}"))
    assert run.folder is not None
    write_report(sight, run.folder / HEADS_PAGE, title="A translator and its attention heads")


def _heading(console: "Console", text: str) -> None:
    console.print(f"\n{text}", style="bold cyan", markup=False, emoji=False)
