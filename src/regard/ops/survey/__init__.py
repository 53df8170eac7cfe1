"""Statistics of attention maps, streamed tile by tile without storing the map."""

from regard.ops.survey.op import survey
from regard.ops.survey.statistics import Survey

__all__ = ["Survey", "survey"]
