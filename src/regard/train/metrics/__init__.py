"""Metrics of trained models, calibration of their confidence, and the metrics log of a run."""
