"""`regard demo`: train a translator, evaluate it, inspect it, and write a report."""

from pathlib import Path
from typing import Annotated

import typer


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
    """Train a small translator, evaluate it, inspect it, and write an HTML report."""
    import time

    from rich.console import Console

    from regard import runs, tasks
    from regard.cli.demo import report
    from regard.errors import ConfigError
    from regard.train.progress import format_duration

    started, console = time.monotonic(), Console(highlight=False, soft_wrap=True)
    folder = out or runs.new_run_folder("runs", "demo")
    is_new = not (folder / "recipe.json").exists()
    try:
        if is_new:
            recipe = runs.override_settings(tasks.recipe("phrases"), settings or [])
        elif settings:
            raise ConfigError(
                f"set: needs a new run, got {folder}, whose settings are fixed; try another --out"
            )
        else:
            recipe = runs.read_recipe(folder)
        report.print_introduction(console, recipe, folder)
        if is_new:
            outcome = runs.start_run(recipe, folder, show=True)
        else:
            outcome, _ = runs.resume_run(folder, show=True)
        if outcome.signal is not None:
            _print_how_to_continue(folder, f"saved at step {outcome.step}")
            raise typer.Exit(128 + outcome.signal)
        run = runs.load_run(folder)
        report.print_scores(console, run)
        translations = report.print_translations(console, run)
        view = report.print_heads(console, run, translations)
        page = report.write_demo_report(run, translations, view)
    except KeyboardInterrupt:
        if (folder / "recipe.json").exists():
            _print_how_to_continue(folder, "stopped")
        raise
    console.print(f"\n[bold]{page}[/] is the report, for any browser; the run is in {folder}")
    console.print(f"total time {format_duration(time.monotonic() - started)}")


def _print_how_to_continue(folder: Path, state: str) -> None:
    print(f"{folder}: {state}; regard demo --out {folder} continues from there")
