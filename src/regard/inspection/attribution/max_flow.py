"""The maximum flow through layers of pipes."""

import numpy as np

MIN_CAPACITY = 1e-8  # a pipe with less room than this is full


def max_flow(capacities: np.ndarray, start: int, end: int) -> float:
    """The most that can go from node `start` of the first layer to node `end` of the last.

    max Σ flow out of start,   0 ≤ flow ≤ pipe,   what comes into a node goes out

    `pipes[l, i, j]` leads from node i of layer l to node j of layer l + 1. Wide paths are found
    first (a threshold that halves), so that few are needed.

    >>> two_ways = np.array([[[0.5, 0.25], [0, 0]], [[0.125, 0], [1.0, 0]]])
    >>> max_flow(two_ways, 0, 0)  # 0.125 by the first node, 0.25 by the second
    0.375
    """
    down = np.array(capacities, dtype=np.float64)
    back = np.zeros_like(down)  # what flows already, and could be taken back
    total, wide = 0.0, float(down.max(initial=0.0))
    while wide > MIN_CAPACITY:
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
    seen = np.zeros((layers + 1, count), dtype=bool)
    came = np.zeros((layers + 1, count), dtype=np.int64)  # by which node of the layer beside it
    above = np.zeros((layers + 1, count), dtype=bool)  # and whether that layer is the one above
    seen[0, start] = True
    edge = [(0, np.array([start]))]
    while edge and not seen[layers, end]:
        further = []
        for layer, nodes in edge:
            for to in (layer + 1, layer - 1):
                if not 0 <= to <= layers:
                    continue
                pipe = down[layer, nodes] if to > layer else back[to][:, nodes].T
                room = pipe >= wide
                new = np.flatnonzero(room.any(0) & ~seen[to])
                if len(new):
                    came[to, new] = nodes[room[:, new].argmax(0)]
                    above[to, new], seen[to, new] = to > layer, True
                    further.append((to, new))
        edge = further
    return _back_from(end, start, came, above) if seen[layers, end] else None


def _back_from(
    end: int, start: int, came: np.ndarray, above: np.ndarray
) -> list[tuple[bool, tuple[int, int, int]]]:
    steps, layer, at = [], len(came) - 1, end
    while (layer, at) != (0, start):
        other, forward = int(came[layer, at]), bool(above[layer, at])
        steps.append((forward, (layer - 1, other, at) if forward else (layer, at, other)))
        layer, at = layer - 1 if forward else layer + 1, other
    return steps
