"""`regard generate`: a language model goes on with a text."""

from typing import Annotated

import typer


def generate(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="The folder of a run, or a specimen's name.")
    ],
    prompt: Annotated[
        str, typer.Argument(help="What it goes on with; a new text if not given, - for input.")
    ] = "",
    max_new_tokens: Annotated[int, typer.Option(help="How many tokens at most.")] = 200,
    temperature: Annotated[
        float, typer.Option(help="How boldly to draw; 0 takes the likeliest.")
    ] = 0.8,
    top_k: Annotated[int | None, typer.Option(help="Draw from the k likeliest only.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw from the fewest that hold this share.")
    ] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Draw from those of at least this share of the likeliest.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The luck: another seed, another text.")] = 0,
) -> None:
    """Go on with a text, shown as it comes."""
    import sys

    from regard import runs
    from regard.decode import Sampling
    from regard.files import read_text

    how = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    if prompt == "-":
        prompt = read_text("standard input", sys.stdin.buffer.read())
    pieces = runs.generate_run(
        runs.load_run(runs.find_run(run)), prompt, max_new_tokens=max_new_tokens, sampling=how
    )
    print(prompt, end="", flush=True)
    try:
        for piece in pieces:
            print(piece, end="", flush=True)
    finally:  # also on Ctrl-C: what was written stays, and ends in a line of its own
        print()
