"""`regard resume`: continue an interrupted training."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.train import distributed_command, print_outcome


class Parallel(StrEnum):
    """Values of --parallel."""

    auto = "auto"
    none = "none"
    ddp = "ddp"
    fsdp = "fsdp"


def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write TensorBoard event files (an extra).")
    ] = False,
    parallel: Annotated[
        Parallel | None, typer.Option(help="Parallel strategy, instead of the recipe's.")
    ] = None,
) -> None:
    """Resume a run from its last valid checkpoint; the result is that of an uninterrupted run.

    Under torchrun, the number of ranks may differ from before.
    """
    from regard import runs

    with distributed_command(runs.read_recipe(run).train.device) as ranks:
        outcome, damaged = runs.resume_run(
            run, show=True, ranks=ranks, tensorboard=tensorboard,
            parallel=parallel.value if parallel else None,
        )  # fmt: skip
        for line in damaged if ranks.is_first else ():
            print(f"skipped: {line}")
    print_outcome(outcome, run, ranks.is_first)
