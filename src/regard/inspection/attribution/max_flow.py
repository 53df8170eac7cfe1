"""Maximum flow through a layered graph."""

import numpy as np

MIN_CAPACITY = 1e-8  # edges with less residual capacity are full


def max_flow(capacities: np.ndarray, start: int, end: int) -> float:
    """Maximum flow from node `start` of the first layer to node `end` of the last.

    max Σ flow out of start,   0 ≤ flow ≤ capacity,   inflow = outflow at each node

    `capacities[l, i, j]` is of the edge from node i of layer l to node j of layer l + 1. Augmenting
    paths are found by capacity scaling (a threshold that halves), so that few are needed.

    >>> two_paths = np.array([[[0.5, 0.25], [0, 0]], [[0.125, 0], [1.0, 0]]])
    >>> max_flow(two_paths, 0, 0)  # 0.125 by the first node, 0.25 by the second
    0.375
    """
    forward = np.array(capacities, dtype=np.float64)
    backward = np.zeros_like(forward)  # residual capacity of the reverse edges
    total, threshold = 0.0, float(forward.max(initial=0.0))
    while threshold > MIN_CAPACITY:
        path = _find_path(forward, backward, start, end, threshold)
        if path is None:
            threshold /= 2
            continue
        flow = min(float((forward if ahead else backward)[edge]) for ahead, edge in path)
        for ahead, edge in path:
            forward[edge] -= flow if ahead else -flow
            backward[edge] += flow if ahead else -flow
        total += flow
    return total


def _find_path(
    forward: np.ndarray, backward: np.ndarray, start: int, end: int, threshold: float
) -> list[tuple[bool, tuple[int, int, int]]] | None:
    """Breadth-first path over forward and reverse edges with capacity of at least `threshold`."""
    layers, count = forward.shape[0], forward.shape[1]
    visited = np.zeros((layers + 1, count), dtype=bool)
    parent = np.zeros((layers + 1, count), dtype=np.int64)  # a node of a neighbouring layer …
    from_above = np.zeros((layers + 1, count), dtype=bool)  # … and whether it is the layer above
    visited[0, start] = True
    frontier = [(0, np.array([start]))]
    while frontier and not visited[layers, end]:
        next_frontier = []
        for layer, nodes in frontier:
            for to in (layer + 1, layer - 1):
                if not 0 <= to <= layers:
                    continue
                edges = forward[layer, nodes] if to > layer else backward[to][:, nodes].T
                usable = edges >= threshold
                new = np.flatnonzero(usable.any(0) & ~visited[to])
                if len(new):
                    parent[to, new] = nodes[usable[:, new].argmax(0)]
                    from_above[to, new], visited[to, new] = to > layer, True
                    next_frontier.append((to, new))
        frontier = next_frontier
    return _trace_back(end, start, parent, from_above) if visited[layers, end] else None


def _trace_back(
    end: int, start: int, parent: np.ndarray, from_above: np.ndarray
) -> list[tuple[bool, tuple[int, int, int]]]:
    path, layer, node = [], len(parent) - 1, end
    while (layer, node) != (0, start):
        other, ahead = int(parent[layer, node]), bool(from_above[layer, node])
        path.append((ahead, (layer - 1, other, node) if ahead else (layer, node, other)))
        layer, node = layer - 1 if ahead else layer + 1, other
    return path
