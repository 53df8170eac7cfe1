"""A command that torchrun may have started many times over: the first one speaks for all."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from regard.errors import RegardError

if TYPE_CHECKING:
    from regard.train import Ranks


@contextmanager
def distributed_command(device: str) -> Iterator["Ranks"]:
    """Meet the other ranks for a while; an error that all share is told once."""
    from regard import train

    ranks = train.init_distributed(device)
    try:
        yield ranks
    except RegardError as error:
        # the first one may be the one that is gone: then whoever is left says so
        if ranks.is_first or "gone" in str(error):
            raise
        time.sleep(1)  # torchrun ends all as soon as one has left: let the first one speak
        raise typer.Exit(2) from None
    train.shutdown_distributed()
