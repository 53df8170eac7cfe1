"""`regard generate`: text generation by a language model."""

from typing import Annotated

import typer

from regard.cli.apply import Jobs, Out, run_job


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
    prompts: Annotated[
        str | None,
        typer.Option(help="File with one prompt per line, or -: writes one JSON string per line."),
    ] = None,
    out: Out = None,
    jobs: Jobs = 1,
) -> None:
    """Continue a text with a language model, printed as it is generated."""
    import sys

    from regard import runs
    from regard.decode import Sampling
    from regard.errors import ConfigError
    from regard.files import read_text

    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    options = {"max_new_tokens": max_new_tokens, "sampling": sampling}
    opened = runs.load(run, device="cpu")
    if prompts is not None:
        if prompt:
            raise ConfigError("prompt: needs to be unset with --prompts, got a text")
        answers = runs.make_answers(opened, **options)
        names = {"verb": "generating", "sampling": str(sampling), "max_new_tokens": max_new_tokens}
        raise typer.Exit(run_job(opened, answers, [prompts], out=out, jobs=jobs, **names))
    if out is not None:
        raise ConfigError("out: needs --prompts FILE, got a prompt alone; try > FILE")
    if prompt == "-":
        prompt = read_text("standard input", sys.stdin.buffer.read())
    pieces = runs.generate_run(opened, prompt, **options)
    print(prompt, end="", flush=True)
    try:
        for piece in pieces:
            print(piece, end="", flush=True)
    finally:  # also on Ctrl-C
        print()
