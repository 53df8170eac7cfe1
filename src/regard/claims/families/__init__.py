"""The experiments: one file per family of claims, imported by `regard.claims`."""
