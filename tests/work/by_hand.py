"""Helpers for tests of `regard.work`: random numbers, and exact ones as torch tensors."""

import torch
from hypothesis import strategies as st

from regard.work.exact import evaluate_digits


def floats(value):
    rows = value.applyfunc(lambda x: evaluate_digits(x, 20)).tolist()
    return torch.tensor([[float(x) for x in row] for row in rows], dtype=torch.float64)


def cells(rows, columns, of):
    """A strategy for so many rows of numbers."""
    return st.lists(st.lists(of, min_size=columns, max_size=columns), min_size=rows, max_size=rows)


def turned(m):
    return [list(row) for row in zip(*m, strict=True)]
