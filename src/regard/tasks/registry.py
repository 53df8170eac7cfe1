"""The registry of tasks and recipes."""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path
from pkgutil import walk_packages
from typing import Any, TypeVar

from regard.errors import ConfigError, suggestion
from regard.files import read_text
from regard.models import config_types
from regard.tasks.base import Recipe, Task

ENTRY_POINTS = "regard.tasks"  # group of the entry points by which packages add tasks
_tasks: dict[str, type[Task]] = {}
# of the library, of imported files and of packages that were named; made on first use
TASKS: dict[str, type[Task]]

TaskClass = TypeVar("TaskClass", bound=type[Task])


def task(name: str) -> Callable[[TaskClass], TaskClass]:
    """Class decorator that registers a task, so that recipe files and runs can name it.

    An installed package adds its tasks by an entry point of the group `regard.tasks`; a file of
    your own is imported by `regard --import FILE …`, or before `rg.load`.

    >>> @task("again")
    ... class Again(find_task("phrases")): ...
    >>> rg.tasks.TASKS.pop("again").name
    'again'
    """

    def register(cls: TaskClass) -> TaskClass:
        if name in _tasks:
            raise ConfigError(f"name: needs an unused name, got {name!r}")
        cls.name = name
        _tasks[name] = cls
        return cls

    return register


@cache
def all_tasks() -> dict[str, type[Task]]:
    """The registered tasks by name, those of the library among them.

    >>> sorted(name for name, cls in all_tasks().items() if cls.verb == "translate")
    ['pairs', 'phrases']
    """
    from regard import tasks

    for module in walk_packages(tasks.__path__, "regard.tasks."):  # any may register a task
        import_module(module.name)
    return _tasks


def __getattr__(name: str) -> Any:
    if name == "TASKS":
        return all_tasks()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def find_task(name: str) -> type[Task]:
    """A task by name, of the library or of an installed package.

    >>> find_task("phrase")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    regard.errors.ConfigError: task: needs one of ..., got 'phrase'; try phrases
    """
    tasks = all_tasks()
    if name not in tasks:
        for entry in entry_points(group=ENTRY_POINTS, name=name):
            entry.load()  # its module registers it
    if name in tasks:
        return tasks[name]
    hint = suggestion(name, tasks) or "; try importing the file that registers it (--import FILE)"
    raise ConfigError(f"task: needs one of {', '.join(sorted(tasks))}, got {name!r}{hint}")


def recipe_names() -> list[str]:
    """Names of the included recipes.

    >>> "phrases" in recipe_names()
    True
    """
    return sorted(Path(file.name).stem for file in _folder().iterdir() if file.is_file())


def recipe(name: str) -> Recipe:
    """An included recipe by name, or the recipe in a TOML file.

    >>> recipe("phrase")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    regard.errors.ConfigError: recipe: needs a .toml file or one of ..., got 'phrase'; try phrases
    """
    from regard.tasks.recipe_file import parse_recipe, read_recipe_file

    if name.endswith(".toml"):
        return read_recipe_file(name)
    names = recipe_names()
    if name not in names:
        raise ConfigError(
            f"recipe: needs a .toml file or one of {', '.join(names)}, got {name!r}"
            f"{suggestion(name, names)}"
        )
    return parse_recipe(recipe_text(name), f"{name}.toml")


def recipe_text(name: str) -> str:
    """The TOML of an included recipe, or of a .toml file.

    >>> recipe_text("phrases").splitlines()[0][:2]
    '# '
    """
    if name.endswith(".toml"):
        return read_text(name)
    return (_folder() / f"{name}.toml").read_text(encoding="utf-8")


def _folder():
    return files("regard.tasks") / "recipes"


def recipe_config_types() -> dict[str, type]:
    """The types of a recipe's task and model, by class name, for reading recipe.json.

    >>> "PhrasesTask" in recipe_config_types(), "TranslatorConfig" in recipe_config_types()
    (True, True)
    """
    return {**{cls.__name__: cls for cls in all_tasks().values()}, **config_types()}
