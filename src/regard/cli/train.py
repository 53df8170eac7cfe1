"""`regard train`: a recipe becomes a run."""

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.torchrun import distributed_command


def train(
    name: Annotated[str, typer.Argument(metavar="RECIPE", help="What to train, such as phrases.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a setting: lr=1e-3, model.dim=64, languages=en,de."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder of the run; a new one in runs/ if not given.")
    ] = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write metrics for TensorBoard too (an extra).")
    ] = False,
) -> None:
    """Train a model by a recipe. Ctrl-C saves; `regard resume` goes on from there.

    Started by torchrun, all ranks train one model together.
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
    """How it ended; one that was asked to stop leaves with the code of its signal."""
    if outcome.signal is not None:
        if is_first:
            print(f"{folder}: saved at step {outcome.step}; regard resume {folder} goes on")
        raise typer.Exit(128 + outcome.signal)
    if not is_first:
        return
    scores = ", ".join(
        f"{name} {value:.4f}"
        for name, value in outcome.scores.items()
        if isinstance(value, int | float)
    )
    print(f"{folder}: {outcome.reason} at step {outcome.step}; on unseen data: {scores}")
    if "signature" in outcome.scores:
        print(outcome.scores["signature"])
