"""Statistics of a linear mixer by one pass over its map, in tiles that are never kept."""

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.ops.kernels import load_kernel, prepare_kernel
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


def survey(mixer: LinearMixer, names: Collection[str], backend: str = "chunked") -> MixerSurvey:
    """Statistics by chunks, without gradients."""
    values: dict[str, Any] = {}
    with torch.no_grad():
        if {"mass", "received", "reach"} & set(names):
            mass, moment, received = sweep(mixer, backend=backend)
            values |= {"mass": mass, "received": received, "reach": ratio(moment, mass)}
        if {"surprise", "state_norm", "state_rank"} & set(names):
            chunk, ends = chunked.chunk_size(mixer), []
            written = chunked.run(mixer, chunk, ends)[1]
            values["surprise"] = surprise(written, mixer.v)
            every = STATE_STRIDE // chunk
            states = ends[every - 1 :: every][: mixer.time // STATE_STRIDE]
            states += ends[-1:] if mixer.time % STATE_STRIDE else []
            empty = [mixer.q.new_zeros(*mixer.q.shape[:2], 0)]
            # one by one: all states together may not fit into memory
            norms = [s.flatten(-2).norm(dim=-1)[..., None] for s in states]
            ranks = [state_rank(s)[..., None] for s in states]
            values["state_norm"] = torch.cat(norms or empty, -1)
            values["state_rank"] = torch.cat(ranks or empty, -1)
        values |= {"half_life": half_life(mixer), "write": mixer.writes}
    return MixerSurvey(**{name: values[name] for name in names})


def influence(mixer: LinearMixer, backend: str = "chunked") -> MixerInfluence:
    """The effects e_tj = |w_tj| ‖r_j‖, summed."""
    with torch.no_grad():
        norms = chunked.run(mixer, chunked.chunk_size(mixer))[1].norm(dim=-1)
        mass, _, received = sweep(replace(mixer, own=None), norms, backend)
        return MixerInfluence(effect_on_query=mass, effect_of_key=received)


def sweep(mixer: LinearMixer, scale: Tensor | None = None, backend: str = "chunked") -> Tensor:
    """Sums of |w_tj| · scale_j: per query, per query times t - j, and per key.

    (3, batch, head, time); on a CPU head by head, as each forgets at its own pace.
    """
    batch, heads, time = mixer.q.shape[:3]
    scale = torch.ones_like(mixer.q[..., 0]) if scale is None else scale
    bound = 1e-15 if mixer.q.dtype == torch.float64 else NEGLIGIBLE
    left = _left_before(mixer, scale)
    backend = "reference" if backend == "chunked" else backend
    kernel = partial(load_kernel, "mixers.sweep_kernel")
    if time and prepare_kernel(backend, mixer.q.is_cuda, lambda: kernel().refusal(mixer) or mixer):
        return kernel().sweep(mixer, scale, left, bound)
    out = mixer.q.new_zeros(3, batch, heads, time)
    for b in range(batch):
        for h in range(heads):
            part = chunked.slice_heads(mixer, slice(h, h + 1), slice(b, b + 1))
            out[:, b, h] = _sweep_head(part, scale[b, h], left[b, h].tolist(), bound)
    return out


def _sweep_head(mixer: LinearMixer, scale: Tensor, left: list[float], bound: float) -> Tensor:
    """The sums of one head, from the last chunk of keys to the first.

    `read` holds what each query reads of the state before a chunk. A query is dropped once all that
    is left for it, at most ‖read‖ times the norms of what was written, is negligible.
    """
    chunk, time = chunked.chunk_size(mixer), mixer.time
    mass, moment, received = sums = mixer.q.new_zeros(3, time)
    read, stop = mixer.q.new_zeros(time, mixer.q.shape[-1]), time
    buffer = mixer.q.new_empty(time * chunk)  # of tiles: memory that is new costs more than them
    for tokens, maps in chunked.backward_maps(mixer, chunk):
        size, here, later = len(tokens), slice(tokens.start, tokens.stop), slice(tokens.stop, stop)
        weight, rows = scale[here], stop - tokens.stop
        back = torch.arange(size - 1, -1, -1, device=mixer.device).to(scale.dtype)
        ahead = torch.arange(1, rows + 1, device=mixer.device).to(scale.dtype)
        tile, end = buffer[: rows * size].view(rows, size), maps.end[0, 0, :size]
        torch.mm(read[later], end.mT, out=tile)
        old = read[later].mul_(maps.keep[0, 0])
        if maps.k is not None:
            old.addmm_(tile, maps.k[0, 0, :size], alpha=-1)
        inner, sums_later = maps.within[0, 0, :size, :size].abs(), tile.abs_() @ weight
        mass[later] += sums_later  # two products with a vector: one with both is slower
        moment[later] += tile @ (weight * back) + sums_later * ahead
        received[here] = (tile.sum(0) + inner.sum(0)) * weight
        mass[here] = inner @ weight
        moment[here] = inner @ (weight * back) - mass[here] * back
        read[here] = maps.q[0, 0, :size]
        live = slice(tokens.start, stop)
        rest = read[live].norm(dim=-1) * left[tokens.start // chunk]
        needed = (rest > bound * mass[live]).nonzero()
        stop = tokens.start + int(needed[-1]) + 1 if len(needed) else tokens.stop
    return sums


def _left_before(mixer: LinearMixer, scale: Tensor) -> Tensor:
    """Bounds of Σ_j ‖what the state has of key j‖ · scale_j before each chunk, per head.

    A token adds β ‖k‖ and multiplies what is there by at most e^g, times |1 - β ‖k‖²| if above 1.
    """
    chunk, square, beta = chunked.chunk_size(mixer), mixer.k.square().sum(-1), mixer.writes
    growth = mixer.decays.amax(-1).clamp(min=chunked.FORGOTTEN)
    if mixer.delta:
        growth = growth + (1 - beta * square).abs().clamp(min=1).log()
    written = beta.abs() * square.sqrt() * scale
    g, written = (chunked.split(x[..., None], chunk)[..., 0] for x in (growth, written))
    total = g.cumsum(-1)
    added = (written * (total[..., -1:] - total).exp()).sum(-1).nan_to_num(torch.inf)  # 0 · inf
    bounds, left = [], mixer.q.new_zeros(mixer.q.shape[:2])
    for one, decay in zip(added.unbind(-1), total[..., -1].exp().unbind(-1), strict=True):
        bounds.append(left)
        left = (one + decay * left).nan_to_num(torch.inf)
    return torch.stack(bounds, -1) if bounds else mixer.q.new_zeros(*mixer.q.shape[:2], 0)
