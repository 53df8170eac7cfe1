"""What each key does to each output, exactly, without running anything again."""

from regard.ops.influence.op import influence, influence_window
from regard.ops.influence.statistics import Influence

__all__ = ["Influence", "influence", "influence_window"]
