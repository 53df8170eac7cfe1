"""`regard resume`: continue an interrupted training."""

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.train import distributed_command, print_outcome, start_ranks


def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a setting that may change: steps=5000, parallel=none."),
    ] = None,
    nproc: Annotated[
        int, typer.Option(help="Processes to train with, started by torchrun.", min=1)
    ] = 1,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write TensorBoard event files (an extra).")
    ] = False,
) -> None:
    """Resume a run from its last valid checkpoint; the result is that of an uninterrupted run.

    The number of processes may differ from before.
    """
    from regard import runs

    start_ranks(nproc)
    with distributed_command(runs.read_recipe(run).train.device) as ranks:
        outcome, damaged = runs.resume_run(
            run, show=True, ranks=ranks, tensorboard=tensorboard, settings=settings or [],
            report=True,
        )  # fmt: skip
        for line in damaged if ranks.is_first else ():
            print(f"skipped: {line}")
    print_outcome(outcome, run, ranks.is_first)
