"""`regard demo`: a translator trained, scored, looked into, and told about on one page."""

from pathlib import Path
from typing import Annotated, Any

import typer


def demo(
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a setting of the phrases recipe: steps=500."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The folder of the run; one that was stopped goes on. Else a new one."),
    ] = None,
) -> None:
    """Train a Transformer that translates, score it, look inside it, and write a report."""
    import time

    from rich.console import Console

    from regard import runs
    from regard.cli import demo_report as parts
    from regard.train.progress import format_duration

    began, console = time.monotonic(), Console(highlight=False, soft_wrap=True)
    folder = out or runs.new_run_folder("runs", "demo")
    try:
        recipe = _recipe(folder, settings or [])
        parts.print_introduction(console, recipe, folder)
        outcome = _train(recipe, folder)
        if outcome.signal is not None:
            _say_how_to_go_on(folder, f"saved at step {outcome.step}")
            raise typer.Exit(128 + outcome.signal)
        run = runs.load_run(folder)
        parts.print_scores(console, run)
        answers = parts.print_translations(console, run)
        seen = parts.print_heads(console, run, answers)
        page = parts.write_demo_report(run, answers, seen)
    except KeyboardInterrupt:
        if (folder / "recipe.json").exists():
            _say_how_to_go_on(folder, "stopped")
        raise
    console.print(f"\n[bold]{page}[/] is the report, for any browser; the run is in {folder}")
    console.print(f"in all {format_duration(time.monotonic() - began)}")


def _recipe(folder: Path, settings: list[str]) -> Any:
    """That of the run that goes on, or the phrases recipe, changed as asked."""
    from regard import runs, tasks
    from regard.errors import ConfigError
    from regard.runs.run import read_recipe

    if not (folder / "recipe.json").exists():
        return runs.override_settings(tasks.recipe("phrases"), settings)
    if settings:
        raise ConfigError(
            f"set: needs a new run, got {folder}, whose settings are fixed; try another --out"
        )
    return read_recipe(folder)


def _train(recipe: Any, folder: Path) -> Any:
    from regard import runs

    if (folder / "recipe.json").exists():
        return runs.resume_run(folder, show=True)[0]
    return runs.start_run(recipe, folder, show=True)


def _say_how_to_go_on(folder: Path, what: str) -> None:
    print(f"{folder}: {what}; regard demo --out {folder} goes on from there")
