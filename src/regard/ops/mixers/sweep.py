"""Statistics of a linear mixer by one pass over its map, in tiles that are never kept."""

from collections.abc import Collection
from dataclasses import replace
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.ops.kernels import use_kernel
from regard.ops.mixers import chunked
from regard.ops.mixers.linear_mixer import LinearMixer
from regard.ops.mixers.statistics import (
    STATE_STRIDE,
    MixerInfluence,
    MixerSurvey,
    half_life,
    ratio,
    state_rank,
    surprise,
)

NEGLIGIBLE = 1e-7  # of the mass of a query: what may be left out of its sums, and its keys' sums


class Sums(NamedTuple):
    """Sums of |w|, per query, weighted by distance, and per key; (batch, head, time)."""

    mass: Tensor
    moment: Tensor
    received: Tensor


def survey(mixer: LinearMixer, names: Collection[str], backend: str = "chunked") -> MixerSurvey:
    """Statistics by chunks, without gradients."""
    values: dict[str, Any] = {}
    with torch.no_grad():
        if {"mass", "received", "reach"} & set(names):
            sums = sweep(mixer, backend=backend)
            values |= {"mass": sums.mass, "received": sums.received}
            values["reach"] = ratio(sums.moment, sums.mass)
        if {"surprise", "state_norm", "state_rank"} & set(names):
            chunk, ends = chunked.chunk_size(mixer), []
            written = chunked.run(mixer, chunk, ends)[1]
            values["surprise"] = surprise(written, mixer.v)
            values |= _of_states(mixer, ends, chunk)
        values |= {"half_life": half_life(mixer), "write": mixer.writes}
    return MixerSurvey(**{name: values[name] for name in names})


def influence(mixer: LinearMixer, backend: str = "chunked") -> MixerInfluence:
    """The effects e_tj = |w_tj| ‖r_j‖, summed."""
    with torch.no_grad():
        norms = chunked.run(mixer, chunked.chunk_size(mixer))[1].norm(dim=-1)
        sums = sweep(replace(mixer, own=None), norms, backend)
        return MixerInfluence(effect_on_query=sums.mass, effect_of_key=sums.received)


def _of_states(mixer: LinearMixer, ends: list[Tensor], chunk: int) -> dict[str, Tensor]:
    every = STATE_STRIDE // chunk
    picked = ends[every - 1 :: every][: mixer.time // STATE_STRIDE]
    if mixer.time % STATE_STRIDE:
        picked = [*picked, ends[-1]]
    if not picked:
        empty = mixer.q.new_zeros(*mixer.q.shape[:2], 0)
        return {"state_norm": empty, "state_rank": empty}
    norms, ranks = zip(*[(s.flatten(-2).norm(dim=-1), state_rank(s)) for s in picked], strict=True)
    return {"state_norm": torch.stack(norms, -1), "state_rank": torch.stack(ranks, -1)}


def sweep(mixer: LinearMixer, scale: Tensor | None = None, backend: str = "chunked") -> Sums:
    """Sums of |w_tj| · scale_j; on a CPU head by head, as each forgets at its own pace."""
    batch, heads, time = mixer.q.shape[:3]
    scale = torch.ones_like(mixer.q[..., 0]) if scale is None else scale
    left = _left_before(mixer, scale)
    bound = 1e-15 if mixer.q.dtype == torch.float64 else NEGLIGIBLE
    backend = "reference" if backend == "chunked" else backend
    if time and use_kernel(backend, mixer.q.is_cuda, lambda: _kernel().refusal(mixer)):
        return Sums(*_kernel().sweep(mixer, scale, left, bound))
    out = mixer.q.new_zeros(3, batch, heads, time)
    for b in range(batch):
        for h in range(heads):
            part = chunked.slice_heads(mixer, b, h)
            out[:, b, h] = _sweep_head(part, scale[b, h], left[b, h].tolist(), bound)
    return Sums(*out)


def _kernel() -> ModuleType:
    from regard.ops.mixers import sweep_kernel  # imports Triton, so only when it will run

    return sweep_kernel


def _sweep_head(mixer: LinearMixer, scale: Tensor, left: list[float], bound: float) -> Tensor:
    """The sums of one head, from the last chunk of keys to the first.

    `read` holds what each query reads of the state before a chunk. A query is dropped once all that
    is left for it, at most ‖read‖ times the norms of what was written, is negligible.
    """
    chunk, time = chunked.chunk_size(mixer), mixer.time
    mass, moment, received = sums = mixer.q.new_zeros(3, time)
    read, stop = mixer.q.new_zeros(time, mixer.q.shape[-1]), time
    for tokens, maps in chunked.backward_maps(mixer, chunk):
        size, here = len(tokens), slice(tokens.start, tokens.stop)
        weight = scale[here]
        back = torch.arange(size - 1, -1, -1, device=mixer.device).to(scale.dtype)
        columns = torch.stack([weight, weight * back], -1)  # of Σ |w|, Σ |w| (end - j)
        inner = maps.within[0, 0, :size, :size].abs()
        later = slice(tokens.stop, stop)
        tile = read[later] @ maps.end[0, 0, :size].mT
        old = read[later].mul_(maps.keep[0, 0])
        if maps.k is not None:
            old.addmm_(tile, maps.k[0, 0, :size], alpha=-1)
        both = tile.abs_() @ columns
        ahead = torch.arange(1, stop - tokens.stop + 1, device=mixer.device).to(scale.dtype)
        mass[later] += both[:, 0]
        moment[later] += both[:, 1] + both[:, 0] * ahead
        received[here] = (tile.sum(0) + inner.sum(0)) * weight
        both = inner @ columns
        mass[here] = both[:, 0]
        moment[here] = both[:, 1] - both[:, 0] * back
        read[here] = maps.q[0, 0, :size]
        live = slice(tokens.start, stop)
        rest = read[live].norm(dim=-1) * left[tokens.start // chunk]
        needed = (rest > bound * mass[live]).nonzero()
        stop = tokens.start + int(needed[-1]) + 1 if len(needed) else tokens.stop
    return sums


def _left_before(mixer: LinearMixer, scale: Tensor) -> Tensor:
    """Bounds of Σ_j ‖what the state has of key j‖ · scale_j before each chunk, per head."""
    chunk, bounds = chunked.chunk_size(mixer), []
    total = mixer.q.new_zeros(mixer.q.shape[:2])
    for tokens, part in chunked.segments(mixer, chunk):
        maps = chunked.make_chunks(part, chunk).as_maps()
        weight = chunked.split(scale[:, :, tokens.start : tokens.stop, None], chunk)[..., 0]
        written = (maps.end.norm(dim=-1) * weight).sum(-1)
        for one, growth in zip(written.unbind(-1), maps.growth.unbind(-1), strict=True):
            bounds.append(total)
            total = one + growth * total
    return torch.stack(bounds, -1) if bounds else mixer.q.new_zeros(*mixer.q.shape[:2], 0)
