"""Exact arithmetic on SymPy numbers: parsing, evaluation to many digits, formatting."""
