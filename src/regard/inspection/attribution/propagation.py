"""Attribution from the top layer to the inputs: rollout, flow, and runs with gradients."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import LookError, ShapeError
from regard.inspection.adapters.model_calls import Scalar, check_scalar
from regard.inspection.adapters.module_tracker import Caller, check_glob, matches
from regard.inspection.edits.base import Indices
from regard.inspection.record.look import patched
from regard.inspection.record.sight import Sight, nearest_name
from regard.inspection.sites.site import Site
from regard.ops.grid import slice_axis
from regard.ops.indices import as_ints, resolve_index
from regard.ops.intercept import AttentionCall, AttentionResult, Proceed, intercepting
from regard.ops.maybe_none import MaybeNone
from regard.ops.terms import weights_from_scores
from regard.ops.tiling import row_bands

TILE_NUMBERS = 1 << 22  # weights per tile: 16 MB of float32
MAX_RESULT_NUMBERS = 1 << 26  # of a result for every token

ReplaceOutput = Callable[[AttentionCall, AttentionResult, Caller], Tensor]
RowWeights = Callable[[Site, range, range], Tensor]  # a tile of the map, heads merged
MAX_FLOW_TOKENS = 128
MIN_CAPACITY = 1e-8  # edges with less residual capacity are full


@dataclass(frozen=True, kw_only=True, eq=False)
class Attribution:
    """Attribution of each token at the top to each input position.

    `own` is over the positions of the token's own sequence; `source` over those of the encoder,
    None without cross-attention.
    """

    own: Float[Tensor, "batch token key"]
    source: Float[Tensor, "batch token source_key"] | MaybeNone = None


def run_with_gradient(
    model: nn.Module, function: Scalar, name: str, at: str, replace_output: ReplaceOutput
) -> Tensor:
    """The scalar of `function`; attentions that match `at` continue with the replaced output."""
    check_glob("at", at)
    matched = False

    def interceptor(call: AttentionCall, proceed: Proceed) -> AttentionResult:
        nonlocal matched
        out, lse = proceed(call)
        caller = tracker.caller
        if caller.matches(at):
            matched, out = True, replace_output(call, (out, lse), caller)
        return out, lse

    with (
        patched(model) as tracker,
        intercepting(interceptor, tracker, other_threads=False),
        torch.enable_grad(),
    ):
        value = function(model)
    if not matched:
        raise LookError(f"at: needs an attention that ran, got {at!r}; try '*'")
    check_scalar(name, value)
    return value


def propagate(
    sites: Sequence[Site],
    tokens: Indices | None,
    rows: RowWeights,
    residual_weight: float,
    attention_weight: float,
) -> Attribution:
    """Propagate from the last attention to the first: r → residual · r + attention · r A."""
    decoders = {_stack_path(site.path) for site in sites if site.kind == "cross"}

    def in_decoder(site: Site) -> bool:
        return not decoders or _stack_path(site.path) in decoders

    def mix(site: Site, r: Tensor) -> Tensor:
        _check_size(site, r, site.queries, site.keys)
        return residual_weight * r + attention_weight * _propagate_through(site, r, rows)

    top = next((site for site in reversed(sites) if in_decoder(site)), sites[-1])
    r, source = _one_hot_rows(top, tokens), None
    for site in reversed(sites):
        if site.kind == "cross":
            _check_size(site, r, site.queries)
            added = attention_weight * _propagate_through(site, r, rows)
            _check_size(site, added if source is None else source, site.keys)
            source, r = added if source is None else source + added, residual_weight * r
        elif in_decoder(site):
            r = mix(site, r)
        elif source is not None:
            source = mix(site, source)
    return Attribution(own=r, source=source)


def _propagate_through(site: Site, r: Tensor, rows: RowWeights) -> Tensor:
    """r A, with A the map given by `rows`; rows where r is 0 are not computed."""
    total = r.new_zeros(*r.shape[:-1], site.keys)
    nonzero = (r != 0).flatten(0, -2).any(0).nonzero().flatten()
    if not len(nonzero):
        return total
    low, high = int(nonzero[0]), int(nonzero[-1]) + 1
    for band in row_bands(high - low, site.q.shape[:2].numel() * site.keys, TILE_NUMBERS):
        part = range(low + band.start, low + band.stop)
        keys = site.terms.key_span(part, site.keys)
        tile = rows(site, part, keys).to(r.dtype)
        total[..., keys.start : keys.stop] += slice_axis(r, -1, part) @ tile
    return total


def select_sites(sight: Sight | Sequence[Site], at: str) -> list[Site]:
    """The sites that match a glob, in order; a sight must have recorded all that match."""
    sites = [sight] if isinstance(sight, Site) else sight
    is_list = isinstance(sites, Sight | Sequence) and not isinstance(sites, str)
    if not is_list or not all(isinstance(site, Site) for site in sites):
        raise LookError(f"sight: needs a Sight or a list of sites, got {sight!r}; try rg.look")
    check_glob("at", at)
    aliases = sight.aliases if isinstance(sight, Sight) else {}
    selected = [
        site for site in sites if matches(at, site.name, site.path, aliases.get(site.name, ""))
    ]
    if not selected:
        if not sites:
            raise LookError("sight: needs an attention, got none; try look(model)")
        names = ", ".join(dict.fromkeys(site.name for site in sites))
        close = nearest_name(at, {site.name: aliases.get(site.name, "") for site in sites}) or "*"
        raise LookError(f"at: needs a site of {names}, got {at!r}; try {close!r} or '*'")
    others = []
    if isinstance(sight, Sight):
        others = [*sight.unmatched, *sight.skipped, *sight.mixer_names]
    if missing := [name for name in others if matches(at, name, aliases.get(name, ""))]:
        more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
        raise LookError(
            f"sight: needs every attention of the stack, got none of "
            f"{', '.join(missing[:4])}{more}; "
            "try look(model) without at= and with more max_bytes=, at= for a complete stack, or "
            "sight.sites to leave them out"
        )
    for site in selected:
        site.require_tensors()
    return selected


def _stack_path(path: str) -> str:
    """The part of a path before its first number, the index of the layer."""
    parts = path.split(".")
    end = next((i for i, part in enumerate(parts) if part.isdigit()), len(parts) - 1)
    return ".".join(parts[:end])


def _one_hot_rows(site: Site, tokens: Indices | None) -> Tensor:
    """One one-hot row per token."""
    count = site.queries
    if tokens is None and site.batch * count**2 > MAX_RESULT_NUMBERS:
        raise ShapeError(
            f"token: needs an index for results above {MAX_RESULT_NUMBERS} numbers, got None for "
            f"{count} tokens; try -1"
        )
    chosen = range(count) if tokens is None else as_ints("token", tokens)
    indices = [resolve_index("token", token, count) for token in chosen]
    r = torch.zeros(len(indices), count, dtype=site.lse.dtype, device=site.lse.device)
    r[range(len(indices)), indices] = 1
    return r.expand(site.batch, -1, -1)


def _check_size(site: Site, r: Tensor, *sizes: int) -> None:
    for size in sizes:
        if size != r.shape[-1] or site.batch != r.shape[0]:
            raise ShapeError(
                f"sites: need one sequence from top to bottom, got {site!r} below "
                f"{r.shape[-1]} positions of {r.shape[0]} sequences; try at= or sight.join"
            )


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
