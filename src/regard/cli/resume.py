"""`regard resume`: go on with a run that was stopped."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.torchrun import distributed_command
from regard.cli.train import print_outcome


class Parallel(StrEnum):
    """Values of --parallel."""

    auto = "auto"
    none = "none"
    ddp = "ddp"
    fsdp = "fsdp"


def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write metrics for TensorBoard too (an extra).")
    ] = False,
    parallel: Annotated[
        Parallel | None,
        typer.Option(help="How ranks share the work, instead of the recipe's setting."),
    ] = None,
) -> None:
    """Go on from the last good checkpoint of a run, to the same end as if it had not stopped.

    Started by torchrun, any number of ranks goes on, however many there were before.
    """
    from regard import runs

    with distributed_command(runs.read_recipe(run).train.device) as ranks:
        outcome, wrong = runs.resume_run(
            run,
            show=True,
            ranks=ranks,
            tensorboard=tensorboard,
            parallel=parallel.value if parallel else None,
        )
        for line in wrong if ranks.is_first else ():
            print(f"left out: {line}")
    print_outcome(outcome, run, ranks.is_first)
