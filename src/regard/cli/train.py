"""`regard train`: train a model by a recipe."""

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.torchrun import distributed_command


def train(
    name: Annotated[str, typer.Argument(metavar="RECIPE", help="Recipe name, such as phrases.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override a setting: lr=1e-3, model.dim=64, languages=en,de."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder; a new one in runs/ if not given.")
    ] = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write TensorBoard event files (an extra).")
    ] = False,
) -> None:
    """Train a model by a recipe. Ctrl-C saves a checkpoint; `regard resume` continues from it.

    Under torchrun, all ranks train one model together.
    """
    from regard import runs, tasks

    recipe = runs.override_settings(tasks.recipe(name), settings or [])
    with distributed_command(recipe.train.device) as ranks:
        folder = Path(
            out or ranks.run_on_first(lambda: str(runs.new_run_folder("runs", recipe.name)))
        )
        if ranks.is_first:
            print(f"{folder}: {recipe.name}, {recipe.train.steps} steps")
        outcome = runs.start_run(recipe, folder, show=True, ranks=ranks, tensorboard=tensorboard)
    print_outcome(outcome, folder, ranks.is_first)


def print_outcome(outcome, folder: Path, is_first: bool = True) -> None:
    """Print how a training ended; one stopped by a signal exits with 128 plus its number."""
    if outcome.signal is not None:
        if is_first:
            print(f"{folder}: saved at step {outcome.step}; regard resume {folder} continues")
        raise typer.Exit(128 + outcome.signal)
    if not is_first:
        return
    from regard.train.evaluation import format_scores

    scores = format_scores(outcome.scores)
    print(f"{folder}: {outcome.reason} at step {outcome.step}; on the test split: {scores}")
    if "signature" in outcome.scores:
        print(outcome.scores["signature"])
