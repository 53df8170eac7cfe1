"""Attention through all layers: rollout by products of maps, flow by their narrowest places."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import ShapeError
from regard.inspection.attribution.max_flow import max_flow
from regard.inspection.attribution.propagation import Attribution, Indices, propagate, select_sites
from regard.inspection.record.sight import Sight
from regard.inspection.sites.site import Site
from regard.ops.indices import resolve_index
from regard.ops.survey.reference import weights_from_scores

MAX_FLOW_TOKENS = 128


def attention_rollout(
    sight: Sight | Sequence[Site],
    token: Indices | None = None,
    at: str = "*",
    *,
    residual: float = 0.5,
) -> Attribution:
    """How much of each position is mixed into a token on the way up (Abnar & Zuidema 2020).

    A_l = residual · I + (1 - residual) · mean over heads of W_l,   rollout = A_L … A_2 A_1

    One token is a row times maps, streamed: memory is linear in n. None asks for every token. In an
    encoder-decoder each cross-attention moves its part to the source, which goes on below. What
    sinks took is missing from the sum. Values, feed-forward layers and signs are not looked at.

    >>> half = rg.make_site(torch.zeros(2, 1), torch.zeros(2, 1), mask=rg.Causal())
    >>> rg.attention_rollout([half, half], 1).own  # ¾ stays in each of two layers
    tensor([[[0.4375, 0.5625]]])
    """
    _check_residual(residual)
    sites = select_sites(sight, at)
    with torch.no_grad():
        return propagate(sites, token, _mean_rows, residual, 1 - residual)


def attention_flow(
    sight: Sight | Sequence[Site], token: int, at: str = "*", *, residual: float = 0.5
) -> Float[Tensor, "batch key"]:
    """The most that could pass from each position to a token, if weights were pipes.

    flow_j = maximum flow from the token at the top to position j, with capacities A_l (as rollout)

    One max-flow problem a position (Abnar & Zuidema 2020), for short inputs of one stack. It is
    never less than rollout, and does not sum to one.

    >>> half = rg.make_site(torch.zeros(2, 1), torch.zeros(2, 1), mask=rg.Causal())
    >>> rg.attention_flow([half, half], 1)  # ¼ goes aside at the top, ¼ of what came down below: both fit
    tensor([[0.5000, 0.7500]])
    """
    _check_residual(residual)
    sites = select_sites(sight, at)
    count = sites[-1].queries
    if any((site.queries, site.keys) != (count, count) for site in sites):
        told = "; ".join(map(repr, sites))
        raise ShapeError(f"sites: need one sequence from top to bottom, got {told}; try at=")
    if count > MAX_FLOW_TOKENS:
        raise ShapeError(f"sites: need at most {MAX_FLOW_TOKENS} tokens, got {count}; try rollout")
    token = resolve_index("token", token, count)
    with torch.no_grad():
        maps = torch.stack([site.weights().double().mean(1) for site in reversed(sites)], 1)
        maps = (1 - residual) * maps + residual * torch.eye(count, dtype=maps.dtype).to(maps)
    pipes = maps.cpu().numpy()
    found = [[max_flow(pipe, token, j) for j in range(count)] for pipe in pipes]
    return torch.tensor(found, dtype=sites[-1].lse.dtype)


def _check_residual(residual: float) -> None:
    if not isinstance(residual, int | float) or not 0 <= residual <= 1:
        raise ShapeError(f"residual: needs a number from 0 to 1, got {residual!r}")


def _mean_rows(site: Site, rows: range, keys: range) -> Tensor:
    scores = site.terms.score_tile(site.q, site.k, rows, keys)
    return weights_from_scores(scores, site.lse[..., rows.start : rows.stop]).mean(1)
