"""Attention rollout and attention flow through all layers (Abnar & Zuidema 2020)."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import ShapeError
from regard.inspection.attribution.propagation import Attribution, propagate, select_sites
from regard.inspection.edits.base import Indices
from regard.inspection.record.sight import Sight
from regard.inspection.sites.site import Site
from regard.ops.indices import resolve_index
from regard.ops.terms import weights_from_scores

MAX_FLOW_TOKENS = 128
MIN_CAPACITY = 1e-8  # edges with less residual capacity are full


def attention_rollout(
    sight: Sight | Sequence[Site],
    token: Indices | None = None,
    at: str = "*",
    *,
    residual: float = 0.5,
) -> Attribution:
    """Attention rollout: how much of each input position is mixed into a token.

    A_l = residual · I + (1 - residual) · mean over heads of W_l,   rollout = A_L … A_2 A_1

    Maps are streamed: memory is linear in n for one token. In an encoder-decoder, each
    cross-attention moves its share to the source, which continues through the encoder. The share of
    learned sinks is missing from the sum. Values and feed-forward layers are ignored.

    Args:
        sight: A complete sight, or a list of sites in order.
        token: Position or positions at the top; all by default.
        at: Glob over the names or paths of attention modules.
        residual: Share of the residual connection in each layer.

    >>> half = rg.make_site(torch.zeros(2, 1), torch.zeros(2, 1), mask=rg.Causal())
    >>> rg.inspection.attention_rollout([half, half], 1).own  # ¾ stays in each of two layers
    tensor([[[0.4375, 0.5625]]])
    """
    sites = _select(sight, at, residual)
    with torch.no_grad():
        return propagate(sites, token, _mean_rows, residual, 1 - residual)


def attention_flow(
    sight: Sight | Sequence[Site], token: int, at: str = "*", *, residual: float = 0.5
) -> Float[Tensor, "batch key"]:
    """Attention flow: maximum flow from each input position to a token.

    flow_j = maximum flow from the token at the top to position j, with capacities A_l (as rollout)

    One max-flow problem per position, for at most 128 tokens of one stack. Flow is never less than
    rollout, and does not sum to one. The arguments are those of `attention_rollout`.

    >>> half = rg.make_site(torch.zeros(2, 1), torch.zeros(2, 1), mask=rg.Causal())
    >>> rg.inspection.attention_flow([half, half], 1)  # two disjoint paths of ¼ to position 0
    tensor([[0.5000, 0.7500]])
    """
    sites = _select(sight, at, residual)
    count = sites[-1].queries
    if any((site.queries, site.keys) != (count, count) for site in sites):
        shapes = "; ".join(map(repr, sites))
        raise ShapeError(f"sites: need one sequence from top to bottom, got {shapes}; try at=")
    if count > MAX_FLOW_TOKENS:
        raise ShapeError(
            f"sites: need at most {MAX_FLOW_TOKENS} tokens, got {count}; try attention_rollout"
        )
    token = resolve_index("token", token, count)
    with torch.no_grad():
        maps = torch.stack([site.weights().double().mean(1) for site in reversed(sites)], 1)
        maps = (1 - residual) * maps + residual * torch.eye(count, dtype=maps.dtype).to(maps)
    capacities = maps.cpu().numpy()
    flows = [[max_flow(graph, token, j) for j in range(count)] for graph in capacities]
    return torch.tensor(flows, dtype=sites[-1].lse.dtype)


def _select(sight: Sight | Sequence[Site], at: str, residual: float) -> list[Site]:
    if not isinstance(residual, int | float) or not 0 <= residual <= 1:
        raise ShapeError(f"residual: needs a number from 0 to 1, got {residual!r}")
    return select_sites(sight, at)


def _mean_rows(site: Site, rows: range, keys: range) -> Tensor:
    scores = site.terms.score_tile(site.q, site.k, rows, keys)
    return weights_from_scores(scores, site.lse[..., rows.start : rows.stop]).mean(1)


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
    parents = np.full((layers + 1, count, 2), -1)  # layer and node; -1 is not visited
    parents[0, start] = 0, start
    frontier = [(0, np.array([start]))]
    while frontier and parents[layers, end, 0] < 0:
        next_frontier = []
        for layer, nodes in frontier:
            for to in (layer + 1, layer - 1):
                if not 0 <= to <= layers:
                    continue
                edges = forward[layer, nodes] if to > layer else backward[to][:, nodes].T
                usable = edges >= threshold
                new = np.flatnonzero(usable.any(0) & (parents[to, :, 0] < 0))
                if len(new):
                    parents[to, new, 0] = layer
                    parents[to, new, 1] = nodes[usable[:, new].argmax(0)]
                    next_frontier.append((to, new))
        frontier = next_frontier
    if parents[layers, end, 0] < 0:
        return None
    path, layer, node = [], layers, end
    while (layer, node) != (0, start):
        above, other = map(int, parents[layer, node])
        ahead = above < layer
        path.append((ahead, (above, other, node) if ahead else (layer, node, other)))
        layer, node = above, other
    return path
