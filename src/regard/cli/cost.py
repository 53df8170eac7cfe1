"""`regard cost`: what a preset or a saved model costs, part by part."""

from typing import Annotated

import typer


def cost(
    name: Annotated[
        str,
        typer.Argument(
            metavar="RUN|PRESET", help="A preset's or a specimen's name, or a saved model."
        ),
    ],
    source: Annotated[
        int | None, typer.Option(help="Tokens, frames, or the side of a picture.")
    ] = None,
    target: Annotated[int, typer.Option(help="Tokens that are written.")] = 64,
    batch_size: Annotated[int, typer.Option(help="How many at a time.")] = 1,
    vocab: Annotated[int, typer.Option(help="Vocabulary of a preset.")] = 32000,
    classes: Annotated[int, typer.Option(help="Classes of a preset.")] = 10,
) -> None:
    """Show parameters, multiply-adds, bytes moved and memory of a model, with the formulas."""
    from rich.console import Console

    from regard.costs.model_cost import cost as cost_of
    from regard.runs.named_models import build_or_load_model

    model = build_or_load_model(name, vocab=vocab, classes=classes)
    Console(width=None if Console().is_terminal else 140, highlight=False).print(
        cost_of(model, source, target, batch_size)
    )
