"""Inspection of models: what each attention, gate and gradient does, with fused kernels on."""

from regard import lazy_package

__all__, __getattr__, __dir__ = lazy_package(__name__, __file__)
