"""Problem families: each solves one kind of exercise step by step.

A family is a solver that adds steps to a `SolutionBuilder`, registered with `@family(name)`, and
its table in families.toml: names, exercises, questions. All files are imported, so that `FAMILIES`
is complete.
"""

from importlib import import_module
from pkgutil import walk_packages

from regard.work.families.registry import FAMILIES, Family, exercise_families, family

__all__ = ["FAMILIES", "Family", "exercise_families", "family"]

for _module in walk_packages(__path__, f"{__name__}."):
    import_module(_module.name)
