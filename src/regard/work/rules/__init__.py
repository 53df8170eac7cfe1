"""The rules that steps go by, by name."""

from regard.errors import WorkError
from regard.work.rules.basic import BASIC, sigmoid
from regard.work.rules.rule import M, Matrix, Rule, Run, bare, each, told

RULES: dict[str, Rule] = {**BASIC}

__all__ = ["RULES", "M", "Matrix", "Rule", "Run", "bare", "each", "rule", "sigmoid", "told"]


def rule(name: str) -> Rule:
    """A rule by its name.

    >>> rule("exp").text
    'exp({0})'
    """
    if name not in RULES:
        raise WorkError(f"rule: needs one of {', '.join(RULES)}, got {name!r}")
    return RULES[name]
