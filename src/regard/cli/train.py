"""`regard train`: a recipe becomes a run."""

from pathlib import Path
from typing import Annotated

import typer


def train(
    name: Annotated[str, typer.Argument(metavar="RECIPE", help="What to train, such as phrases.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a setting: lr=1e-3, model.dim=64, languages=en,de."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder of the run; a new one in runs/ if not given.")
    ] = None,
) -> None:
    """Train a model by a recipe. Ctrl-C saves; `regard resume` goes on from there."""
    from regard import train

    recipe = train.change(train.recipe(name), settings or [])
    folder = out or train.next_folder("runs", recipe.name)
    print(f"{folder}: {recipe.name}, {recipe.train.steps} steps")
    tell(train.start_run(recipe, folder, show=True), folder)


def tell(outcome, folder: Path) -> None:
    """How it ended; one that was asked to stop leaves with the code of its signal."""
    if outcome.signal is not None:
        print(f"{folder}: saved at step {outcome.step}; regard resume {folder} goes on")
        raise typer.Exit(128 + outcome.signal)
    scores = ", ".join(
        f"{name} {value:.4f}"
        for name, value in outcome.scores.items()
        if isinstance(value, int | float)
    )
    print(f"{folder}: {outcome.reason} at step {outcome.step}; on unseen data: {scores}")
    if "signature" in outcome.scores:
        print(outcome.scores["signature"])
