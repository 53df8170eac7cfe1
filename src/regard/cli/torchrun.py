"""Commands under torchrun: every rank runs the command, the first one prints errors."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from regard.errors import RankLostError, RegardError

if TYPE_CHECKING:
    from regard.train import Ranks


@contextmanager
def distributed_command(device: str) -> Iterator["Ranks"]:
    """Join the process group for the duration of a command; a shared error is printed once."""
    from regard import train

    ranks = train.init_distributed(device)
    try:
        yield ranks
    except RankLostError:  # the first rank may be the one that is gone: every other one says so
        raise
    except RegardError:
        if ranks.is_first:
            raise
        time.sleep(1)  # torchrun kills all ranks when one exits: let the first one print
        raise typer.Exit(2) from None
    train.shutdown_distributed()
