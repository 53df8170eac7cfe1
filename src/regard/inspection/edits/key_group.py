"""Several keys of a site treated as one key: the basis of the closed forms."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.errors import ShapeError
from regard.inspection.edits.call_terms import attend_without_keys
from regard.inspection.sites.site import Site
from regard.ops.grid import slice_axis
from regard.ops.indices import as_int
from regard.ops.influence.effect import DOMINANT_WEIGHT
from regard.ops.influence.leave_one_out import log_weight_and_complement
from regard.ops.intercept import AttentionCall
from regard.ops.terms import repeat_kv, upcast


class KeyGroup(NamedTuple):
    """Some keys treated as one key, with their total weight w and mean value v, for every query."""

    log_w: Tensor
    log_rest: Tensor  # log (1 - w)
    from_output: Tensor  # v - h, h the output
    from_rest: Tensor  # v - h', h' the output without these keys: (v - h) / (1 - w)


def group_keys(site: Site, keys: Sequence[int]) -> KeyGroup:
    """Weight and mean value of some keys, exact also where they have nearly all of the weight.

    Rows where the keys have more than half of the weight are recomputed without them: there 1 - w
    and v - h' would be lost in the rounding of lse and out. With half-precision outputs, all rows
    that see the keys are.
    """
    for key in keys:
        if not 0 <= as_int("key", key) < site.keys:
            raise ShapeError(f"key: needs 0 to {site.keys - 1}, got {key}")
    rows = range(site.queries)
    columns = [range(key, key + 1) for key in dict.fromkeys(keys)]
    scores = torch.cat([site.terms.score_tile(site.q, site.k, rows, x) for x in columns], -1)
    v = torch.cat([upcast(repeat_kv(slice_axis(site.v, -2, x), site.q)) for x in columns], -2)
    score = scores[..., 0]
    if len(columns) > 1:
        score = scores.logsumexp(-1)
        v = torch.exp(scores - score.masked_fill(score == -torch.inf, 0)[..., None]) @ v
    log_w = score - site.lse.masked_fill(site.lse == -torch.inf, 0)
    half = site.attention_record.is_half_precision
    recompute = log_w > (-torch.inf if half else math.log(DOMINANT_WEIGHT))
    light = log_w.masked_fill(recompute, -torch.inf)
    log_rest = torch.log1p(-light.exp())
    from_output = v - upcast(site.out)
    group = KeyGroup(light, log_rest, from_output, from_output / log_rest.exp()[..., None])
    heavy = recompute.flatten(0, -2).any(0).nonzero()[:, 0]
    if not len(heavy):
        return group
    part = range(int(heavy[0]), int(heavy[-1]) + 1)
    out, lse = attend_without_keys(AttentionCall(site.q, site.k, site.v, site.terms), part, keys)
    log_w, log_rest = log_weight_and_complement(slice_axis(score, -1, part), lse)
    from_rest = (v if v.shape[-2] == 1 else slice_axis(v, -2, part)) - out
    exact = KeyGroup(log_w, log_rest, from_rest * log_rest.exp()[..., None], from_rest)
    use, merged = slice_axis(recompute, -1, part), []
    for old, new in zip(group, exact, strict=True):
        axis, where = (-1, use) if old.ndim == use.ndim else (-2, use[..., None])
        merged.append(old.clone())
        rows = slice_axis(merged[-1], axis, part)
        rows.copy_(torch.where(where, new, rows))
    return KeyGroup(*merged)
