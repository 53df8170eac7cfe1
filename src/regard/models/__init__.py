"""Whole networks, their configs and presets."""
