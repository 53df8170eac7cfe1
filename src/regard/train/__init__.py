"""Training: one loop for every model, losses, checkpoints, distributed ranks and calibration."""

from regard import lazy_package

__all__, __getattr__, __dir__ = lazy_package(__name__, __file__)
