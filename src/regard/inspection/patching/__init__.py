"""Patching: which activations carry the difference between two inputs."""

from regard.inspection.patching.path import PathEffect, path
from regard.inspection.patching.sweep import PatchingResult, sweep

__all__ = ["PatchingResult", "PathEffect", "path", "sweep"]
