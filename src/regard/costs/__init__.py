"""Cost of models from their sizes: parameters, FLOPs and bytes, with formulas; and diagrams."""

from regard import lazy_package

__all__, __getattr__, __dir__ = lazy_package(__name__, __file__)
