"""`regard evaluate`: the scores of a run again, with what it gets wrong."""

from typing import Annotated

import typer


def evaluate(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="The folder of a run, or a specimen's name.")
    ],
    split: Annotated[str, typer.Option(help="Which unseen part: valid or test.")] = "test",
    beam: Annotated[
        int | None, typer.Option(help="How many answers are kept in the search; 1 is greedy.")
    ] = None,
    mistakes: Annotated[int, typer.Option(help="How many mistakes to show.")] = 10,
) -> None:
    """Score a run on data that it was not trained on, and show what it gets wrong."""
    from rich.console import Console
    from rich.text import Text

    from regard import runs
    from regard.errors import ConfigError
    from regard.runs.jobs.progress import progress_bar

    if split not in ("valid", "test"):
        raise ConfigError(f"part: needs one of valid, test, got {split!r}")
    with progress_bar("scoring"):
        found = runs.evaluate_run(runs.load_run(runs.find_run(run)), split, beam_width=beam)
    console = Console(highlight=False, soft_wrap=True)
    for name, value in found.scores.items():
        console.print(
            Text(f"{name} {value:.4f}" if isinstance(value, float) else f"{name} {value}")
        )
    if found.confidence:
        told = ", ".join(f"{name} {value:.4f}" for name, value in found.confidence.items())
        console.print(Text(f"confidence: {told}"))
    for mistake in found.mistakes[:mistakes]:
        console.print(
            Text(f"\n{mistake.source}\n  right  {mistake.reference}\n  got    {mistake.prediction}")
        )
    if len(found.mistakes) > mistakes:
        console.print(f"\nand {len(found.mistakes) - mistakes} more")
