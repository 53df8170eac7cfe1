"""The exact effect of each key on each output, without further forward passes per key."""

from regard.ops.influence.effect import Influence
from regard.ops.influence.op import influence, influence_window

__all__ = ["Influence", "influence", "influence_window"]
