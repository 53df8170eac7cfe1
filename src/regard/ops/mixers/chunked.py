"""Linear mixers by chunks of tokens: products within a chunk, the state from one to the next.

Within a chunk that begins with state S:   r = T (v - K̄ S),   y = Q̄ S + M r,   S' = d S + Eᵀ r
With A the decayed products of keys below the diagonal, T = (I + A diag(β))^{-1} (Yang et al. 2024,
"Parallelizing Linear Transformers with the Delta Rule", section 3); without the delta rule T = I
and K̄ = 0. A map across chunks is a product of these, so that no n × n tensor is needed.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.ops.mixers.linear_mixer import LinearMixer

CHUNK, CHANNEL_CHUNK = 64, 32  # tokens; fewer where each key channel has a decay of its own
BLOCK = 8  # tokens whose channel decays are compared pair by pair
FORGOTTEN = -1000.0  # a lower decay is 0 too, and -inf would make differences NaN
SEGMENT = 1 << 20  # numbers of one product of a segment, 4 MB of float32


class Chunks(NamedTuple):
    """The products of consecutive chunks, each (batch, head, chunk, …)."""

    q: Tensor  # Q̄, queries as they read the state before the chunk
    within: Tensor  # M: what a token reads of the others, (query, key); β is in it
    end: Tensor  # E: keys as the state after the chunk has them; β is in it
    keep: Tensor  # d, (key_dim or 1): the part of the state that is kept
    k: Tensor | None  # K̄, keys as they read the state before the chunk; delta rule only
    solve: Tensor | None  # T

    def step(self, at: int, state: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Outputs, what is written, and the state after a chunk."""
        r = v
        if self.k is not None and self.solve is not None:
            r = self.solve[:, :, at] @ (v - self.k[:, :, at] @ state)
        out = self.q[:, :, at] @ state + self.within[:, :, at] @ r
        return out, r, self.keep[:, :, at, :, None] * state + self.end[:, :, at].mT @ r

    def as_maps(self) -> "Chunks":
        """The same with `within`, `q` and `end` as maps of the values: T is in them."""
        if self.k is None or self.solve is None:
            return self
        within = self.within @ self.solve
        return self._replace(
            within=within, q=self.q - within @ self.k, end=self.solve.mT @ self.end
        )


def chunk_size(mixer: LinearMixer) -> int:
    """The number of tokens of a chunk."""
    return CHUNK if mixer.decays.shape[-1] == 1 else CHANNEL_CHUNK


def segments(mixer: LinearMixer, chunk: int) -> Iterator[tuple[range, LinearMixer]]:
    """Ranges of tokens, each whole chunks, so that what a range needs is bounded."""
    per_token = mixer.q.shape[:2].numel() * max(chunk, mixer.q.shape[-1])
    length = max(1, SEGMENT // max(1, per_token * chunk)) * chunk
    for start in range(0, mixer.time, length):
        tokens = range(start, min(start + length, mixer.time))
        yield tokens, slice_tokens(mixer, tokens)


def slice_tokens(mixer: LinearMixer, tokens: range, state: Tensor | None = None) -> LinearMixer:
    """A range of tokens, after this state."""

    def narrow(name: str, x: Tensor) -> Tensor:
        return x.narrow(1 if name == "resets" else 2, tokens.start, len(tokens))

    return mixer.map_tensors(narrow, state=state)


def slice_heads(mixer: LinearMixer, heads: slice, batch: slice = slice(None)) -> LinearMixer:
    """Some heads of some sequences."""
    return mixer.map_tensors(lambda name, x: x[batch] if name == "resets" else x[batch, heads])


def make_chunks(mixer: LinearMixer, chunk: int) -> Chunks:
    """The products of every chunk of a mixer; the last one is padded with tokens that do nothing.

    Cumulated decays are float64: their differences would lose what float32 sums to.
    """
    m = mixer
    q, k, beta = split(m.q, chunk), split(m.k, chunk), split(m.writes[..., None], chunk)
    g = split(m.decays.double().clamp(min=FORGOTTEN), chunk)
    total = g.cumsum(-2)
    reading = total - g if m.reads_before else total
    t = torch.arange(chunk, device=m.device)
    allowed = t[:, None] > t if m.reads_before else t[:, None] >= t
    resets = m.resets if m.resets is not None else allowed.new_zeros(1, chunk)
    # the number of resets: tokens with different counts have nothing in common
    count = split(resets[:, None, :, None].int(), chunk).cumsum(-2)
    allowed, dtype, write = allowed & (count == count.mT), q.dtype, beta.mT
    first, last = count == 0, count == count[..., -1:, :]
    keep = (total[..., -1, :].exp() * first[..., -1, :]).to(dtype)
    end = k * beta * ((total[..., -1:, :] - total).exp() * last).to(dtype)
    inside = products(q, k, reading, total).masked_fill(~allowed, 0) * write
    q = q * (reading.exp() * first).to(dtype)
    if not m.delta:
        return Chunks(q, inside, end, keep, None, None)
    low = products(k, k, total, total).masked_fill(~(allowed & (t[:, None] > t)), 0) * write
    eye = torch.eye(chunk, dtype=dtype, device=m.device)
    solve = torch.linalg.solve_triangular(low + eye, eye, upper=False, unitriangular=True)
    return Chunks(q, inside, end, keep, k * (total.exp() * first).to(dtype), solve)


def products(x: Tensor, k: Tensor, reading: Tensor, total: Tensor) -> Tensor:
    """x_t · diag(e^{G_t - G_j}) k_j of tokens j up to t; what is above the diagonal has no meaning.

    With a decay per channel a quotient of exponentials would overflow. Across the middle of a range
    both factors decay, e^{G_t - G_mid} and e^{G_mid - G_j}; only small blocks compare each pair.
    """
    size = x.shape[-2]
    if total.shape[-1] == 1:
        return (x @ k.mT) * (reading - total.mT).clamp(max=0).to(x.dtype).exp()
    if size <= BLOCK:
        gap = (reading[..., :, None, :] - total[..., None, :, :]).clamp(max=0).to(x.dtype)
        return (x[..., :, None, :] * k[..., None, :, :] * gap.exp()).sum(-1)
    half = size // 2
    (x1, x2), (k1, k2), (r1, r2), (t1, t2) = (
        (a[..., :half, :], a[..., half:, :]) for a in (x, k, reading, total)
    )
    middle = t1[..., -1:, :]
    across = (x2 * (r2 - middle).to(x.dtype).exp()) @ (k1 * (middle - t1).to(x.dtype).exp()).mT
    above = F.pad(products(x1, k1, r1, t1), (0, size - half))
    return torch.cat([above, torch.cat([across, products(x2, k2, r2, t2)], -1)], -2)


def split(x: Tensor, chunk: int) -> Tensor:
    """(batch, head, time, dim) as (batch, head, chunk, token, dim), padded with zeros."""
    x = F.pad(x, (0, 0, 0, -x.shape[2] % chunk))
    return x.reshape(*x.shape[:2], -1, chunk, x.shape[-1])


def run(
    mixer: LinearMixer, chunk: int, ends: list[Tensor] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """All outputs, all r_t and the last state; `ends` receives the state after each chunk."""
    outs, written = [], []
    state = mixer.q.new_zeros(*mixer.q.shape[:2], mixer.q.shape[-1], mixer.v.shape[-1])
    if mixer.state is not None:
        state = mixer.state.to(state.dtype)
    for tokens, part in segments(mixer, chunk):
        chunks, values = make_chunks(part, chunk), split(part.v, chunk)
        pieces = []
        for at in range(values.shape[2]):
            out, r, state = chunks.step(at, state, values[:, :, at])
            pieces.append((out, r))
            if ends is not None:
                ends.append(state)
        for store, some in zip((outs, written), zip(*pieces, strict=True), strict=True):
            store.append(torch.cat(some, 2)[:, :, : len(tokens)])
        del chunks  # before the next ones are made
    if not outs:
        return mixer.v, mixer.v, state
    out = torch.cat(outs, 2)
    if mixer.own is not None:
        out = out + mixer.own[..., None] * mixer.v
    return out, torch.cat(written, 2), state


def backward_maps(mixer: LinearMixer, chunk: int) -> Iterator[tuple[range, Chunks]]:
    """Tokens and maps of every chunk, the last one first; `own` is in `within`."""
    for tokens, part in reversed([*segments(mixer, chunk)]):
        maps = make_chunks(part, chunk).as_maps()
        if part.own is not None:
            own = split(part.own[..., None], chunk)[..., 0]
            maps = maps._replace(within=maps.within + torch.diag_embed(own))
        for at in reversed(range(maps.q.shape[2])):
            start = tokens.start + at * chunk
            one: Any = [None if x is None else x[:, :, at] for x in maps]
            yield range(start, min(start + chunk, tokens.stop)), Chunks(*one)


def window(mixer: LinearMixer, rows: range, keys: range, chunk: int) -> Tensor:
    """Weights of a range of queries and keys.

    Many queries: the outputs for one-hot values of the keys. Many keys: what the queries read,
    carried back from chunk to chunk.
    """
    first, last = min(rows.start, keys.start), max(rows.stop, keys.stop)
    part, top = slice_tokens(mixer, range(first, last)), rows.start - first
    if len(rows) > len(keys):
        eye = torch.eye(len(keys), dtype=mixer.v.dtype, device=mixer.device)
        one_hot = F.pad(eye, (0, 0, keys.start - first, last - keys.stop))
        out = run(replace(part, v=one_hot.expand(*mixer.v.shape[:2], -1, -1)), chunk)[0]
        return out[:, :, top : top + len(rows)]
    part = slice_tokens(part, range(rows.stop - first))
    read, tiles = None, []
    for tokens, maps in backward_maps(part, chunk):
        here = slice(max(top - tokens.start, 0), len(tokens))
        q, tile = maps.q[:, :, here], maps.within[:, :, here]
        if read is not None:
            later, before = read @ maps.end.mT, maps.keep[:, :, None] * read
            before = before if maps.k is None else before - later @ maps.k
            q = torch.cat([q, before], 2)  # what they read of the state before the chunk
            tile = torch.cat([tile, later], 2)
        read = q
        tiles.append(F.pad(tile[..., : len(tokens)], (0, 0, len(rows) - tile.shape[2], 0)))
    w = F.pad(torch.cat(tiles[::-1], -1), (0, max(0, keys.stop - rows.stop)))
    return w[..., keys.start - first : keys.stop - first]
