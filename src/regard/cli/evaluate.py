"""`regard evaluate`: scores of a run on held-out data, with its mistakes."""

from typing import Annotated, Any

import typer


def evaluate(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run folder or pretrained model.")],
    split: Annotated[str, typer.Option(help="valid or test.")] = "test",
    beam: Annotated[int | None, typer.Option(help="Beam width; 1 is greedy.")] = None,
    mistakes: Annotated[int, typer.Option(help="Mistakes to show.")] = 10,
) -> None:
    """Evaluate a run on the valid or test split, and show its mistakes."""
    from rich.console import Console
    from rich.text import Text

    from regard import runs
    from regard.cli.output import progress_bar

    kind: Any = split  # checked by the library
    with progress_bar("evaluating"):
        result = runs.load(run).evaluate(kind, beam_width=beam)
    console = Console(highlight=False, soft_wrap=True)
    for name, value in result.scores.items():
        text = f"{name} {value:.4f}" if isinstance(value, float) else f"{name} {value}"
        if name in result.intervals:
            text += " (95%: {:.4f} to {:.4f})".format(*result.intervals[name])
        console.print(Text(text))
    if result.confidence:
        scores = ", ".join(f"{name} {value:.4f}" for name, value in result.confidence.items())
        console.print(Text(f"confidence: {scores}"))
    for answer in result.mistakes[:mistakes]:
        sure = "" if answer.confidence is None else f"  (confidence {answer.confidence:.2f})"
        console.print(
            Text(
                f"\n{answer.source}\n  reference   {answer.reference}\n"
                f"  prediction  {answer.prediction}{sure}"
            )
        )
    if len(result.mistakes) > mistakes:
        console.print(f"\nand {len(result.mistakes) - mistakes} more")
