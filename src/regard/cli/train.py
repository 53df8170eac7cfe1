"""`regard train` and `resume`: train by a recipe, on one process or under torchrun."""

import os
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.errors import RankLostError, RegardError

if TYPE_CHECKING:
    from regard.train import Outcome, Ranks


Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override a setting: lr=1e-3, model.dim=64, languages=en,de."),
]
Skip = Annotated[
    list[str] | None,
    typer.Option(help="Step to leave out: baseline, calibrate, evaluate, card or report."),
]
Processes = Annotated[
    int, typer.Option(help="Processes to train with, started by torchrun.", min=1)
]
TensorBoard = Annotated[
    bool, typer.Option("--tensorboard", help="Also write TensorBoard event files (an extra).")
]


def train(
    name: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A .toml file, or a name of `regard recipes`.")
    ],
    settings: Settings = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder; a new one in runs/ if not given.")
    ] = None,
    init_from: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="RUN",
            help="Start from this run, downloaded model or folder: its weights and tokenizer.",
        ),
    ] = None,
    baseline_only: Annotated[
        bool,
        typer.Option(
            "--baseline-only",
            help="Keep the simple model that a training has to beat, as a run of its own.",
        ),
    ] = False,
    curve: Annotated[
        bool,
        typer.Option("--curve", help="Say what twice the data may bring, by parts of the data."),
    ] = False,
    skip: Skip = None,
    nproc: Processes = 1,
    tensorboard: TensorBoard = False,
) -> None:
    """Train a model by a recipe. Ctrl-C saves a checkpoint; `regard resume` continues from it.

    Under torchrun, all ranks train one model together.
    """
    from regard import runs, tasks

    recipe = runs.override_settings(tasks.recipe(name), settings or [])
    start_ranks(nproc)
    with distributed_command(recipe.train.device) as ranks:
        outcome = runs.fit(
            recipe, out, settings=settings or (), skip=skip or (), init_from=init_from, show=True,
            baseline_only=baseline_only, curve=curve, ranks=ranks, tensorboard=tensorboard,
            recipe_text=tasks.recipe_text(name),
        )  # fmt: skip
    print_outcome(outcome, ranks.is_first, skip or ())
    if ranks.is_first:
        verb, folder = recipe.data.verb, outcome.folder
        print(f"next:\n  regard {verb} {folder} …\n  regard serve {folder}")


def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Change a setting that may change: steps=5000, train.parallel=none."
        ),
    ] = None,
    skip: Skip = None,
    nproc: Processes = 1,
    tensorboard: TensorBoard = False,
    accept_data: Annotated[
        bool, typer.Option("--accept-data", help="Go on although files of the data have changed.")
    ] = False,
) -> None:
    """Resume a run from its last valid checkpoint; the result is that of an uninterrupted run.

    The number of processes may differ from before.
    """
    from regard import runs

    start_ranks(nproc)
    with distributed_command(runs.read_recipe(run).train.device) as ranks:
        outcome = runs.fit(
            run, settings=settings or (), skip=skip or (), accept_data=accept_data, show=True,
            ranks=ranks, tensorboard=tensorboard,
        )  # fmt: skip
    print_outcome(outcome, ranks.is_first, skip or ())


def start_ranks(nproc: int) -> None:
    """Replace this process by torchrun with the same command, unless one process is enough."""
    if nproc == 1 or "LOCAL_RANK" in os.environ:
        return
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={nproc}"]
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *launcher, "-m", "regard", *_without_nproc()])


def _without_nproc() -> list[str]:
    """The arguments of this command without --nproc, an option of torchrun too."""
    arguments = iter(sys.argv[1:])
    others: list[str] = []
    for argument in arguments:
        if argument == "--nproc":
            next(arguments, None)
        elif not argument.startswith("--nproc="):
            others.append(argument)
    return others


@contextmanager
def distributed_command(device: str) -> Iterator["Ranks"]:
    """Join the process group for the duration of a command; a shared error is printed once."""
    from regard import train

    ranks = train.init_distributed(device)
    try:
        yield ranks
    except RankLostError:  # the first rank may be the lost one, so every other rank prints it
        raise
    except RegardError:
        if ranks.is_first:
            raise
        time.sleep(1)  # torchrun kills all ranks when one exits: let the first one print
        raise typer.Exit(2) from None
    train.shutdown_distributed()


def print_outcome(outcome: "Outcome", is_first: bool, skip: Collection[str] = ()) -> None:
    """Print how a training ended; one stopped by a signal exits with 128 plus its number."""
    folder = outcome.folder
    if outcome.signal is not None:
        if is_first:
            print(f"{folder}: saved at step {outcome.step}; regard resume {folder} continues")
        raise typer.Exit(128 + outcome.signal)
    if not is_first:
        return
    from regard.train.evaluation import format_scores

    best = outcome.weights_step
    state = f"{outcome.reason} at step {outcome.step}" if outcome.step else "fitted"
    state += f", best at {best}" if best not in (outcome.step, None) else ""
    split = "valid" if "evaluate" in skip else "test"
    print(f"{folder}: {state}; on the {split} split: {format_scores(outcome.scores)}")
    if "signature" in outcome.scores:
        print(outcome.scores["signature"])
    if "report" not in skip:
        print(f"{folder}/report.html is the report")
