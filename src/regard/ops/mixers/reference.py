"""Linear mixers by their recurrence, token by token: the definition of every other backend."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from regard.ops.mixers.linear_mixer import LinearMixer


def steps(mixer: LinearMixer) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The output y_t, what is written r_t, and the state S_t, of each token."""
    m, decay, beta = mixer, mixer.decays.exp()[..., None], mixer.writes[..., None]
    state = m.q.new_zeros(*m.q.shape[:2], m.q.shape[-1], m.v.shape[-1])
    if m.state is not None:
        state = m.state.to(state.dtype)
    for t in range(m.time):
        if m.resets is not None:
            state = state.masked_fill(m.resets[:, t, None, None, None], 0)
        before, state = state, decay[:, :, t] * state
        q, k, v = m.q[:, :, t, :, None], m.k[:, :, t, :, None], m.v[:, :, t]
        r = v - (k * state).sum(-2) if m.delta else v
        state = state + k * (beta[:, :, t] * r)[..., None, :]
        y = (q * (before if m.reads_before else state)).sum(-2)
        yield (y if m.own is None else y + m.own[:, :, t, None] * v), r, state


def mix(mixer: LinearMixer) -> tuple[Tensor, Tensor, Tensor]:
    """All outputs, all r_t and the last state."""
    out, written, state = [], [], mixer.state
    for y, r, state in steps(mixer):  # noqa: B007
        out.append(y)
        written.append(r)
    if state is None:
        state = mixer.q.new_zeros(*mixer.q.shape[:2], mixer.q.shape[-1], mixer.v.shape[-1])
    if not out:
        return mixer.v, mixer.v, state
    return torch.stack(out, -2), torch.stack(written, -2), state


def weights(mixer: LinearMixer) -> Tensor:
    """The map W, (batch, head, query, key): the outputs for one-hot values."""
    eye = torch.eye(mixer.time, dtype=mixer.v.dtype, device=mixer.device)
    eye = eye.expand(*mixer.v.shape[:2], -1, -1)
    return mix(replace(mixer, v=eye, state=None))[0]


def effects(mixer: LinearMixer) -> Tensor:
    """How far each output moves without the write of each token, (batch, head, query, key)."""
    out = mix(mixer)[0]
    moved = [out - mix(mixer.without_writes(j))[0] for j in range(mixer.time)]
    return torch.stack([x.norm(dim=-1) for x in moved], -1)


def states(mixer: LinearMixer) -> Tensor:
    """The state after each token, (batch, head, time, key_dim, value)."""
    return torch.stack([state for _, _, state in steps(mixer)], 2)
