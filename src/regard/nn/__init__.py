"""Layers: parameters and one call of an op."""
