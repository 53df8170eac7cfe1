"""`regard recipes`, `new` and `data`: included recipes, recipes for own data, and their data."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer


def recipes(
    name: Annotated[
        str | None, typer.Argument(metavar="[RECIPE]", help="A name, a .toml file or a run folder.")
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Also show defaults, each with its meaning.")
    ] = False,
) -> None:
    """List the included recipes; with a name, print that recipe as a file to change and train.

    Example: regard recipes stdlib > mine.toml; regard train mine.toml
    """
    from regard import runs, tasks
    from regard.tasks.recipe_file import recipe_to_toml

    if name is None:
        for known in tasks.recipe_names():
            text = tasks.recipe_text(known)
            print(f"{known:28} {text.splitlines()[0].removeprefix('# ')}")
    elif not full and name in tasks.recipe_names():
        print(tasks.recipe_text(name), end="")
    else:
        recipe = runs.read_recipe(name) if Path(name).is_dir() else tasks.recipe(name)
        print(recipe_to_toml(recipe, full=full), end="")


def new(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="pairs, text, images, speech, tags or labels.")
    ],
    data: Annotated[
        list[Path],
        typer.Argument(metavar="DATA…", help="Folder or file; two aligned files for pairs."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Recipe file to write.")] = Path(
        "task.toml"
    ),
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    minutes: Annotated[
        float | None,
        typer.Option(help="Choose sizes and steps by trials on the valid split, so many minutes."),
    ] = None,
) -> None:
    """Look at data and write a recipe file for it, with the reason for each decision.

    Examples: regard new pairs train.de train.en; regard new images photos/ -o photos.toml
    """
    from regard.cli.output import print_message, report_written
    from regard.runs.starting_point import suggest_source
    from regard.tasks.proposals.kinds import write_proposal

    improve = None
    if minutes is not None:
        from regard.runs.trials import tune_proposal

        improve = partial(tune_proposal, minutes=minutes, log=print_message)
    proposal = write_proposal(kind, data, out, force=force, improve=improve)
    print_message(proposal.report.summary())
    for line in proposal.report.warnings():
        print_message(f"warning: {line}")
    lines = f"{out}: written; next:\n  regard data {out}\n  regard train {out}"
    if source := suggest_source(proposal.recipe):
        lines += f"\n  {source.replace('…', str(out))}"
    report_written(out, lines)


def data(
    name: Annotated[str, typer.Argument(metavar="TASK.toml", help="Recipe file.")],
    baseline: Annotated[
        bool, typer.Option(help="Also score the simple model that a training has to beat.")
    ] = True,
    curve: Annotated[
        bool, typer.Option("--curve", help="Say what twice the data may bring, by parts of it.")
    ] = False,
    model: Annotated[
        bool, typer.Option("--model", help="With --curve: train the model, not the simple one.")
    ] = False,
) -> None:
    """Show the data of a recipe: counts, lengths, classes, skipped lines, examples, warnings.

    The last line is the score on the test split of a simple model of the same data.
    """
    from regard import tasks
    from regard.runs.baseline import score_baseline
    from regard.runs.data_curve import data_curve

    recipe = tasks.recipe(name)
    report = tasks.inspect_data(recipe.data, tokenize=True, seed=recipe.train.seed)
    print(report, flush=True)
    if baseline and report.sizes["test"] and (scores := score_baseline(recipe)):
        print(f"\n{scores}", flush=True)
    if curve or model:
        print(f"\n{data_curve(recipe, train_model=model, show=True)}")
