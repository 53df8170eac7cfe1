"""Rules by name: what a step computes, its formula, and common mistakes.

Rules that their formulas alone define are in rules.toml; those here need a function. A rule of one
family stands in the file of that family.
"""

from pathlib import Path

from regard.errors import WorkError
from regard.files import parse_toml, read_text
from regard.work.rules.basic import BASIC_RULES
from regard.work.rules.recurrent import RECURRENT_RULES
from regard.work.rules.rule import M, Matrix, MatrixFunction, Rule, rule
from regard.work.rules.scores import SCORE_RULES
from regard.work.rules.shapes import rule_from_pattern

_DECLARED = parse_toml(read_text(Path(__file__).with_name("rules.toml")))
RULES: dict[str, Rule] = {name: rule(**facts) for name, facts in _DECLARED.items()}
RULES |= BASIC_RULES | SCORE_RULES | RECURRENT_RULES  # and those in the files of their families

__all__ = ["RULES", "M", "Matrix", "MatrixFunction", "Rule", "get_rule"]


def get_rule(name: str) -> Rule:
    """Look up a rule by name; names with numbers or symbols in them are built on demand.

    >>> get_rule("exp").text
    'exp({0})'
    """
    rule = RULES.get(name) or rule_from_pattern(name)
    if rule is None:
        raise WorkError(f"rule: needs one of {', '.join(RULES)}, got {name!r}")
    return rule
