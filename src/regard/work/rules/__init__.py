"""The rules that steps go by, by name."""

from regard.errors import WorkError
from regard.work.rules.basic import BASIC, sigmoid
from regard.work.rules.blocks import BLOCKS
from regard.work.rules.constructions import CONSTRUCTIONS
from regard.work.rules.cost import COST
from regard.work.rules.explain import EXPLAIN
from regard.work.rules.gates import GATES
from regard.work.rules.gradients import GRADIENTS
from regard.work.rules.hybrid import HYBRID
from regard.work.rules.moments import MOMENTS
from regard.work.rules.paths import PATHS
from regard.work.rules.perturb import PERTURB
from regard.work.rules.positions import POSITIONS
from regard.work.rules.proofs import LINES
from regard.work.rules.rule import M, Matrix, Rule, Run, bare, each, told
from regard.work.rules.scores import SCORES
from regard.work.rules.shapes import made
from regard.work.rules.symbols import put_in

RULES: dict[str, Rule] = {
    **BASIC,
    **EXPLAIN,
    **BLOCKS,
    **POSITIONS,
    **SCORES,
    **GRADIENTS,
    **PATHS,
    **GATES,
    **HYBRID,
    **MOMENTS,
    **PERTURB,
    **CONSTRUCTIONS,
    **COST,
    **LINES,
}

__all__ = ["RULES", "M", "Matrix", "Rule", "Run", "bare", "each", "rule", "sigmoid", "told"]


def rule(name: str) -> Rule:
    """A rule by its name.

    >>> rule("exp").text
    'exp({0})'
    """
    found = RULES.get(name) or made(name) or put_in(name)
    if found is None:
        raise WorkError(f"rule: needs one of {', '.join(RULES)}, got {name!r}")
    return found
