"""What the weights of an attention are like, by streaming over its map: never the map itself."""

from regard.ops.survey.op import survey
from regard.ops.survey.statistics import Survey

__all__ = ["Survey", "survey"]
