"""Cost of models from their sizes: parameters, FLOPs and bytes, with formulas; and diagrams."""

from regard.costs.diagrams import diagram
from regard.costs.formulas import Formula, break_even_length, generation_cost, layer_cost
from regard.costs.layer_costs import CostPart
from regard.costs.model_cost import Cost, SharedEncoding, cost, shared_encoding_cost
from regard.costs.svg import Diagram

__all__ = [
    "Cost", "CostPart", "Diagram", "Formula", "SharedEncoding", "break_even_length", "cost",
    "diagram", "generation_cost", "layer_cost", "shared_encoding_cost",
]  # fmt: skip
