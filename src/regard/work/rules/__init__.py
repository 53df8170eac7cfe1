"""Rules by name: what a step computes, its formula, and common mistakes."""

from regard.errors import WorkError
from regard.work.rules.basic import BASIC_RULES
from regard.work.rules.constructions import CONSTRUCTION_RULES
from regard.work.rules.cost import COST_RULES
from regard.work.rules.moments import MOMENT_RULES
from regard.work.rules.perturb import PERTURB_RULES
from regard.work.rules.positions import POSITION_RULES
from regard.work.rules.proofs import PROOF_RULES
from regard.work.rules.recurrent import RECURRENT_RULES
from regard.work.rules.rule import M, Matrix, MatrixFunction, Rule
from regard.work.rules.scores import SCORE_RULES
from regard.work.rules.shapes import rule_from_pattern

RULES: dict[str, Rule] = BASIC_RULES | POSITION_RULES | SCORE_RULES | RECURRENT_RULES
RULES |= MOMENT_RULES | PERTURB_RULES | CONSTRUCTION_RULES | COST_RULES
RULES |= PROOF_RULES

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
