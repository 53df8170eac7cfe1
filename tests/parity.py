"""How far two computations of the same numbers may differ, from dtype, depth and size."""

import torch

FACTOR = 4.0  # over the random walk of rounding errors


def allowed(
    depth: int, width: int, *, size: float = 1.0, dtype: torch.dtype = torch.float32
) -> dict[str, float]:
    """Tolerances for `assert_close`: FACTOR · eps · √(depth · width) · size.

    A sum of `width` products is off by about eps · √width, and `depth` of them in a row add up
    likewise. `size` is how much an error grows on its way: for weights after a softmax the largest
    score, as w = exp(s - lse) is off by |s| · eps.

    >>> allowed(4, 32)["atol"] < 6e-6
    True
    """
    bound = FACTOR * torch.finfo(dtype).eps * (depth * width) ** 0.5 * size
    return {"atol": bound, "rtol": bound}
