"""`regard recipes`: the included recipes, and one of them as a file."""

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
    from pathlib import Path

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
