"""From a token down through the attentions that ran: rows times maps, a band of rows at a time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import LookError, ShapeError
from regard.inspection.adapters.module_tracker import check_glob
from regard.inspection.record.sight import Sight
from regard.inspection.sites.site import Site
from regard.ops.attend.tiled import row_bands
from regard.ops.grid import slice_axis
from regard.ops.indices import as_ints, resolve_index

TILE_NUMBERS = 1 << 22  # numbers of a map held at a time, 16 MB of float32
MAX_RESULT_NUMBERS = 1 << 26  # numbers in an answer for every token

RowWeights = Callable[
    [Site, range, range], Tensor
]  # some rows of what stands for the map, heads merged
Indices = int | Sequence[int]


@dataclass(frozen=True, kw_only=True, eq=False)
class Attribution:
    """What each token at the top owes to each position at the bottom.

    `own` is over the positions of the sequence itself; `source` over those that it reads by
    cross-attention, None when there is no such thing.

    >>> site = rg.make_site(torch.zeros(2, 1), torch.zeros(2, 1))
    >>> rg.attention_rollout([site], 0).own  # half stays, half is spread evenly
    tensor([[[0.7500, 0.2500]]])
    """

    own: Float[Tensor, "batch token key"]
    source: Float[Tensor, "batch token source_key"] | None = None


def propagate(
    sites: Sequence[Site],
    tokens: Indices | None,
    rows: RowWeights,
    residual_weight: float,
    attention_weight: float,
) -> Attribution:
    """Follow tokens from the last attention to the first: r → stay · r + move · r A at each."""
    across = [site for site in sites if site.kind == "cross"]
    reading = {stack_path(site.path) for site in across}
    first = next(
        (s for s in reversed(sites) if not across or stack_path(s.path) in reading), sites[-1]
    )
    r = _start(first, tokens)
    source = None
    for site in reversed(sites):
        if site.kind == "cross":
            _check(site, r, site.queries)
            read = attention_weight * propagate_through(site, r, rows)
            _check(site, read if source is None else source, site.keys)
            source, r = read if source is None else source + read, residual_weight * r
        elif not across or stack_path(site.path) in reading:
            _check(site, r, site.queries, site.keys)
            r = residual_weight * r + attention_weight * propagate_through(site, r, rows)
        elif source is not None:
            _check(site, source, site.queries, site.keys)
            source = residual_weight * source + attention_weight * propagate_through(
                site, source, rows
            )
    return Attribution(own=r, source=source)


def propagate_through(site: Site, r: Tensor, rows: RowWeights) -> Tensor:
    """r A, with A the map of a site or what stands for it; rows that r does not touch are free."""
    total = r.new_zeros(*r.shape[:-1], site.keys)
    touched = (r != 0).flatten(0, -2).any(0).nonzero().flatten()
    if not len(touched):
        return total
    low, high = int(touched[0]), int(touched[-1]) + 1
    for band in row_bands(high - low, site.q.shape[:2].numel() * site.keys, TILE_NUMBERS):
        part = range(low + band.start, low + band.stop)
        keys = site.terms.key_span(part, site.keys)
        total[..., keys.start : keys.stop] += slice_axis(r, -1, part) @ rows(site, part, keys).to(
            r.dtype
        )
    return total


def select_sites(sight: Sight | Sequence[Site], at: str) -> list[Site]:
    """The sites that a glob means, in the order they ran; of a sight none may be missing."""
    sites = [sight] if isinstance(sight, Site) else sight
    is_list = isinstance(sites, Sight | Sequence) and not isinstance(sites, str)
    if not is_list or not all(isinstance(site, Site) for site in sites):
        raise LookError(f"sight: needs a Sight or a list of sites, got {sight!r}; try rg.look")
    check_glob("at", at)
    found = [s for s in sites if fnmatchcase(s.name, at) or fnmatchcase(s.path, at)]
    if not found:
        names = ", ".join(dict.fromkeys(site.name for site in sites)) or "nothing"
        raise LookError(f"at: needs a site of {names}, got {at!r}; try '*'")
    lost = [*sight.unmatched, *sight.skipped] if isinstance(sight, Sight) else []
    if missing := [name for name in lost if fnmatchcase(name, at)]:
        more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
        raise LookError(
            f"sight: needs every attention on the way, got none of {', '.join(missing[:4])}{more}; "
            "try look(model) without at= and with more keep=, at= for a stack that is whole, or "
            "sight.sites to leave them out"
        )
    for site in found:
        site.require_tensors()
    return found


def stack_path(path: str) -> str:
    """The stack that a layer belongs to: its path up to the number.

    >>> stack_path("model.decoder.layers.3.encoder_attn"), stack_path("encoder.blocks.0.self_attention")
    ('model.decoder.layers', 'encoder.blocks')
    """
    parts = path.split(".")
    at = next((i for i, part in enumerate(parts) if part.isdigit()), len(parts) - 1)
    return ".".join(parts[:at])


def _start(site: Site, tokens: Indices | None) -> Tensor:
    """One row a token, with a 1 at its place."""
    count = site.queries
    if tokens is None and site.batch * count**2 > MAX_RESULT_NUMBERS:
        raise ShapeError(
            f"token: needs to be given above {MAX_RESULT_NUMBERS} numbers, got None for {count} tokens; try -1"
        )
    some = range(count) if tokens is None else as_ints("token", tokens)
    places = [resolve_index("token", place, count) for place in some]
    r = torch.zeros(len(places), count, dtype=site.lse.dtype, device=site.lse.device)
    r[range(len(places)), places] = 1
    return r.expand(site.batch, -1, -1)


def _check(site: Site, r: Tensor, *sizes: int) -> None:
    for size in sizes:
        if size != r.shape[-1] or site.batch != r.shape[0]:
            raise ShapeError(
                f"sites: need one sequence from top to bottom, got {site!r} below "
                f"{r.shape[-1]} positions of {r.shape[0]} sequences; try at= or sight.joined"
            )
