"""The exact effect of each key on each output, without further forward passes per key."""

from regard.ops.influence.op import influence, influence_window
from regard.ops.influence.statistics import Influence

__all__ = ["Influence", "influence", "influence_window"]
