"""`regard cost`: parameters, FLOPs, bytes and memory of a model, by part."""

from typing import Annotated

import typer


def cost(
    name: Annotated[
        str,
        typer.Argument(metavar="RUN|PRESET", help="Preset, pretrained model or saved model."),
    ],
    source: Annotated[
        int | None, typer.Option(help="Source tokens, audio frames, or image side in pixels.")
    ] = None,
    target: Annotated[int, typer.Option(help="Target tokens.")] = 64,
    batch_size: Annotated[int, typer.Option(help="Batch size.")] = 1,
    vocab: Annotated[int, typer.Option(help="Vocabulary size of a preset.")] = 32000,
    classes: Annotated[int, typer.Option(help="Number of classes of a preset.")] = 10,
) -> None:
    """Show parameters, multiply-adds, bytes moved and memory of a model, with the formulas."""
    from rich.console import Console

    from regard import costs, runs

    model = runs.build_or_load_model(name, vocab=vocab, classes=classes)
    table = costs.cost(model, source, target, batch_size)
    Console(width=None if Console().is_terminal else 140, highlight=False).print(table)
