"""The maximum flow through layers of pipes."""

import numpy as np

LEAST = 1e-9  # flows smaller than this are rounding


def max_flow(pipes: np.ndarray, start: int, end: int) -> float:
    """The most that can go from node `start` of the first layer to node `end` of the last.

    max Σ flow out of start,   0 ≤ flow ≤ pipe,   what comes into a node goes out

    `pipes[l, i, j]` leads from node i of layer l to node j of layer l + 1. Wide paths are found
    first (a threshold that halves), so that few are needed.

    >>> two_ways = np.array([[[0.5, 0.25], [0, 0]], [[0.125, 0], [1.0, 0]]])
    >>> max_flow(two_ways, 0, 0)  # 0.125 by the first node, 0.25 by the second
    0.375
    """
    down = np.array(pipes, dtype=np.float64)
    back = np.zeros_like(down)  # what flows already, and could be taken back
    total, wide = 0.0, float(down.max(initial=0.0))
    while wide > LEAST:
        path = _path(down, back, start, end, wide)
        if path is None:
            wide /= 2
            continue
        room = min(float((down if forward else back)[step]) for forward, step in path)
        for forward, step in path:
            down[step] -= room if forward else -room
            back[step] += room if forward else -room
        total += room
    return total


def _path(
    down: np.ndarray, back: np.ndarray, start: int, end: int, wide: float
) -> list[tuple[bool, tuple[int, int, int]]] | None:
    """Pipes from start to end with room for `wide`, some perhaps taken back; by breadth first."""
    layers, count = down.shape[0], down.shape[1]
    came: dict[tuple[int, int], tuple[tuple[int, int], bool, tuple[int, int, int]]] = {}
    seen = np.zeros((layers + 1, count), dtype=bool)
    seen[0, start] = True
    edge = [(0, start)]
    while edge and not seen[layers, end]:
        further = []
        for layer, i in edge:
            if layer < layers:
                for j in np.flatnonzero((down[layer, i] >= wide) & ~seen[layer + 1]):
                    came[layer + 1, int(j)] = (layer, i), True, (layer, i, int(j))
                    further.append((layer + 1, int(j)))
                    seen[layer + 1, j] = True
            if layer:
                for j in np.flatnonzero((back[layer - 1, :, i] >= wide) & ~seen[layer - 1]):
                    came[layer - 1, int(j)] = (layer, i), False, (layer - 1, int(j), i)
                    further.append((layer - 1, int(j)))
                    seen[layer - 1, j] = True
        edge = further
    if not seen[layers, end]:
        return None
    steps, at = [], (layers, end)
    while at != (0, start):
        at, forward, step = came[at]
        steps.append((forward, step))
    return steps
