"""`regard verify`: every look, edit and attribution against brute force, on your own model."""

from typing import Annotated

import typer


def verify(
    model: Annotated[
        str,
        typer.Argument(
            metavar="RUN|FOLDER",
            help="Run folder, pretrained model, saved model or Hugging Face folder.",
        ),
    ],
    text: Annotated[
        str | None,
        typer.Option(help="Text to run on; token ids if there is no tokenizer."),
    ] = None,
    target: Annotated[str | None, typer.Option(help="Target text of an encoder-decoder.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare what Regard computes on a model with brute force; exit code 1 if anything is off."""
    import json

    from regard import runs
    from regard.cli.look import silence_transformers
    from regard.cli.output import progress_bar

    with silence_transformers(), progress_bar("verifying"):
        found = runs.verify_text(runs.load(model, device="cpu").text_model, text, target=target)
    print(json.dumps(found.to_dicts(), indent=1) if as_json else found)
    if not found.passed:
        raise typer.Exit(1)
