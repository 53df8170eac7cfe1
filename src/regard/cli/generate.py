"""`regard generate`: text generation by a language model."""

from typing import Annotated

import typer


def generate(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run folder or pretrained model.")],
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="Text to continue; - for standard input.")
    ] = "",
    max_new_tokens: Annotated[int, typer.Option(help="Maximum number of new tokens.")] = 200,
    temperature: Annotated[float, typer.Option(help="Sampling temperature; 0 is greedy.")] = 0.8,
    top_k: Annotated[
        int | None, typer.Option(help="Sample from the k most probable tokens.")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="Nucleus sampling: the fewest tokens with this total probability."),
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option(help="Drop tokens below this fraction of the highest probability."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
) -> None:
    """Continue a text with a language model, printed as it is generated."""
    import sys

    from regard import runs
    from regard.decode import Sampling
    from regard.files import read_text

    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    if prompt == "-":
        prompt = read_text("standard input", sys.stdin.buffer.read())
    pieces = runs.generate_run(
        runs.load(run, device="cpu"), prompt, max_new_tokens=max_new_tokens, sampling=sampling
    )
    print(prompt, end="", flush=True)
    try:
        for piece in pieces:
            print(piece, end="", flush=True)
    finally:  # also on Ctrl-C
        print()
