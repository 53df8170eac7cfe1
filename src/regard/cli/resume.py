"""`regard resume`: go on with a run that was stopped."""

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.train import tell


def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
) -> None:
    """Go on from the last good checkpoint of a run, to the same end as if it had not stopped."""
    from regard import train

    outcome, wrong = train.resume_run(run, show=True)
    for line in wrong:
        print(f"left out: {line}")
    tell(outcome, run)
