"""Sums over the map of a linear mixer as a Triton kernel, one program per chunk of queries.

A program carries what its queries read of the state back from chunk to chunk, as `sweep` does, and
ends once what is left for them is negligible.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.ops.kernels.terms import load_rows
from regard.ops.mixers import chunked
from regard.ops.mixers.linear_mixer import LinearMixer

MAX_DIM = 256  # more key channels do not fit into registers


def refusal(mixer: LinearMixer) -> str | None:
    """Why the kernel does not run, or None."""
    if mixer.q.dtype != torch.float32:
        return f"it computes in float32, got {mixer.q.dtype}"
    if mixer.q.shape[-1] > MAX_DIM:
        return f"key_dim is {mixer.q.shape[-1]}, more than {MAX_DIM}"
    return None


def sweep(mixer: LinearMixer, scale: Tensor, left: Tensor, bound: float) -> Tensor:
    """Σ |w|, Σ |w| (t - j) and Σ_t |w|, weighted by the scale of key j; (3, batch, head, time).

    `left` bounds what is left before each chunk, (batch, head, chunk).
    """
    m, chunk = mixer, chunked.chunk_size(mixer)
    maps = [maps for _, maps in chunked.backward_maps(m, chunk)][::-1]
    rows, end, keep = (
        torch.stack([getattr(one, name) for one in maps], 2).flatten(0, 1).contiguous()
        for name in ("q", "end", "keep")
    )
    all_keys = [one.k for one in maps if one.k is not None]  # of all or none
    keys = torch.stack(all_keys, 2) if all_keys else None
    inner = torch.stack([one.within for one in maps], 2).flatten(0, 1).abs()
    scale = chunked.split(scale[..., None], chunk)[..., 0].flatten(0, 1).contiguous()
    inner = inner * scale[..., None, :]
    t = torch.arange(chunk, device=m.device, dtype=torch.float32)
    distance = (t[:, None] - t).clamp(min=0)
    sums = torch.stack([inner.sum(-1), (inner * distance).sum(-1), inner.sum(-2)])
    heads, chunks, dim = len(rows), len(maps), m.q.shape[-1]
    left = left.flatten(0, 1).contiguous()
    if chunks > 1 and heads:  # two programs per chunk; the first one has no keys before it
        _sweep_kernel[((chunks - 1) * 2, heads)](
            rows, end, keys, keep, left, scale, sums[0], sums[1], sums[2],
            chunks, bound, DIM=dim, PADDED=max(16, triton.next_power_of_2(dim)),
            CHANNELS=keep.shape[-1], CHUNK=chunk, ROWS=chunk // 2,
        )  # fmt: skip
    return sums.reshape(3, *m.q.shape[:2], -1)[..., : m.time]


@triton.jit
@no_type_check  # Triton has other types
def _sweep_kernel(
    READ, END, KEYS, KEEP, LEFT, SCALE, MASS, MOMENT, RECEIVED, chunks, bound,
    DIM: tl.constexpr, PADDED: tl.constexpr, CHANNELS: tl.constexpr,
    CHUNK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1).to(tl.int64)
    row0 = tl.program_id(0) * ROWS + CHUNK
    first = head * chunks * CHUNK
    dims, column = tl.arange(0, PADDED), tl.arange(0, CHUNK)
    row = row0 + tl.arange(0, ROWS)
    read = load_rows(READ + first * DIM, row, DIM, row >= 0, dims, DIM)
    mass = tl.load(MASS + first + row)
    moment = tl.load(MOMENT + first + row)
    b = row0 // CHUNK - 1
    is_live = 1
    while (b >= 0) & (is_live > 0):
        key = b * CHUNK + column
        end = load_rows(END + first * DIM, key, DIM, key >= 0, dims, DIM)
        tile = tl.dot(read, tl.trans(end), input_precision="tf32x3")
        w = tl.abs(tile) * tl.load(SCALE + first + key)[None, :]
        mass += tl.sum(w, 1)
        moment += tl.sum(w * (row[:, None] - key[None, :]).to(tl.float32), 1)
        tl.atomic_add(RECEIVED + first + key, tl.sum(w, 0), sem="relaxed")
        if CHANNELS == 1:
            read *= tl.load(KEEP + head * chunks + b)
        else:
            keep = tl.load(KEEP + (head * chunks + b) * DIM + dims, mask=dims < DIM, other=0.0)
            read *= keep[None, :]
        if KEYS is not None:
            k = load_rows(KEYS + first * DIM, key, DIM, key >= 0, dims, DIM)
            read -= tl.dot(tile, k, input_precision="tf32x3")
        rest = tl.sqrt(tl.sum(read * read, 1)) * tl.load(LEFT + head * chunks + b)
        is_live = tl.max(tl.where(rest > bound * mass, 1, 0), 0)
        b -= 1
    tl.store(MASS + first + row, mass)
    tl.store(MOMENT + first + row, moment)
