"""Simple models of the same data: what a training has to beat."""
