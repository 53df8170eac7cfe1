"""`regard data`: what the data of a recipe holds."""

from typing import Annotated

import typer


def data(
    name: Annotated[str, typer.Argument(metavar="TASK.toml", help="Recipe file.")],
) -> None:
    """Show the data of a recipe: counts, lengths, classes, skipped lines, examples, warnings."""
    from regard import tasks

    recipe = tasks.recipe(name)
    print(tasks.inspect_data(recipe.data, tokenize=True, seed=recipe.train.seed))
