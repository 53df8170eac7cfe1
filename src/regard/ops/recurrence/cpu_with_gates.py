"""The recurrence with gates on a CPU: an in-place loop with its own backward pass.

Autograd would record every operation of every step. The backward pass needs only the gates, which
are saved anyway: their derivatives for all steps at once, one product per step, and one product for
the weights.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.ops.packed_linear import (
    LinearFunction,
    linear,
    mkl_is_slow,
    packed_linear,
    transposed_linear,
)
from regard.ops.recurrence.reference import CellStep, GRUStep, LSTMStep, zero_padding_steps
from regard.ops.recurrence.weights import CellWeights, GRUWeights, State

MIN_PACKED_SIZE = 16  # steps (and for MKL sequences) from which packing the weights pays


def recur(
    x: Tensor, weights: CellWeights, state: State, lengths: Tensor | None
) -> tuple[Tensor, State, CellStep]:
    """All outputs, the final state and every gate; x is (sequence, time, dim)."""
    x = x.transpose(0, 1).contiguous()  # a strided product takes 2-3 times as long
    u, w_bias, u_bias = weights.u, weights.w_bias, weights.u_bias
    state = tuple(s.to(u.dtype) for s in state)  # under autocast the state stays in full precision
    if isinstance(weights, GRUWeights):
        wx = linear(x.flatten(0, 1), weights.w, w_bias).to(u.dtype)
        with torch.autocast(x.device.type, enabled=False):
            states, gates = _GRU.apply(wx, state[0], u, u_bias)
        z, r, candidate = gates.view(len(x), -1, len(u)).chunk(3, -1)
        trace = GRUStep(z, r, candidate, states)
    else:
        both = u_bias if w_bias is None else w_bias if u_bias is None else w_bias + u_bias
        wx = linear(x.flatten(0, 1), weights.w, both).to(u.dtype)
        with torch.autocast(x.device.type, enabled=False):
            states, cells, gates = _LSTM.apply(wx, state[0], state[1], u)
        i, f, o, candidate = gates.view(len(x), -1, len(u)).chunk(4, -1)
        trace = LSTMStep(i, f, o, candidate, cells, states)
    last = tuple(s[-1] for s in trace.state)  # (sequence, hidden), from (time, sequence, hidden)
    if lengths is not None:  # the state after the last valid step
        at, some = (lengths - 1).clamp(min=0)[None, :, None], (lengths > 0)[:, None]
        last = tuple(
            torch.where(some, s.gather(0, at.expand(1, *first.shape))[0], first)
            for s, first in zip(trace.state, state, strict=True)
        )
    trace = zero_padding_steps(trace._make(values.transpose(0, 1) for values in trace), lengths)
    return trace.h, last, trace


class _GRU(torch.autograd.Function):
    """States and gates (z, r, candidate) from W x + b_W, (time · sequence, …), in place."""

    @staticmethod
    def forward(
        ctx: Any, wx: Tensor, h: Tensor, u: Tensor, u_bias: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        gates, two = wx.view(-1, len(h), len(u)), 2 * h.shape[-1]
        uh = wx.new_empty(len(gates), *h.shape)
        states = wx.new_empty(len(gates) + 1, *h.shape)
        states[0] = old = h
        times_u = _packed(u, u_bias, gates) or transposed_linear(u, u_bias)
        # Gates overwrite wx: touching freshly allocated memory is slow. A view costs as much as a
        # small sum, so all views are created before the loop.
        z, r, candidate = gates.chunk(3, -1)
        xp, view = _fast_library(u.dtype)
        rows = (uh, gates[..., :two], z, r, candidate, view(candidate), states[1:])
        for m_c, zr, z_t, r_t, c, c_view, new in _times(*rows):
            m = times_u(old)
            zr.add_(m[:, :two]).sigmoid_()
            c.addcmul_(r_t, m_c.copy_(m[:, two:]))
            xp.tanh(c_view, out=c_view)
            old = torch.lerp(old, c, z_t, out=new)
        ctx.mark_dirty(wx)
        ctx.save_for_backward(wx, uh, states, u)
        ctx.biased = u_bias is not None
        return states[1:], wx

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, ...]:
        wx, uh, states, u = ctx.saved_tensors
        gates, d_gates = (x.reshape(len(uh), -1, len(u)) for x in (wx, grads[1]))
        d_states = grads[0]
        hidden, before = uh.shape[-1], states[:-1]
        z, r, candidate = gates.chunk(3, -1)
        shut, slope = 1 - z, 1 - candidate * candidate
        dz_dh = (candidate - before) * (z * shut)
        dc_dh, dr_dc = z * slope, uh * (r * (1 - r))
        slopes = torch.cat([z * shut, r * (1 - r), slope], -1)
        d_wx = d_gates * slopes  # gradients of the gates themselves
        d_wx[..., hidden : 2 * hidden] += d_wx[..., 2 * hidden :] * dr_dc
        d_uc, carry = torch.empty_like(uh), torch.zeros_like(states[0])
        u_zr, u_c = u[: 2 * hidden], u[2 * hidden :]
        d_z, d_r, d_c = d_wx.chunk(3, -1)
        rows = (d_states, d_wx[..., : 2 * hidden], d_z, d_r, d_c, d_uc, dz_dh, dr_dc, dc_dh)
        for ds, d_zr, dz, dr, dc, d_u, kz, kr, kc, r_t, keep in _times(*rows, r, shut, back=True):
            dh = carry.add_(ds)
            dz.addcmul_(dh, kz)
            new = dh * kc
            dr.addcmul_(new, kr)
            torch.mul(dc.add_(new), r_t, out=d_u)
            carry = dh.mul_(keep).addmm_(d_zr, u_zr).addmm_(d_u, u_c)
        d_uh = torch.cat([d_wx[..., : 2 * hidden], d_uc], -1).flatten(0, 1)
        return (
            d_wx.flatten(0, 1),
            carry,
            linear(d_uh.mT, before.flatten(0, 1).mT),
            d_uh.sum(0) if ctx.biased else None,
        )


class _LSTM(torch.autograd.Function):
    """States, cells and gates (i, f, o, candidate) from W x + b_W + b_U, in place."""

    @staticmethod
    def forward(
        ctx: Any, wx: Tensor, h: Tensor, c: Tensor, u: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        gates, hidden = wx.view(-1, len(h), len(u)), h.shape[-1]
        states, cells = (wx.new_empty(len(gates) + 1, *h.shape) for _ in range(2))
        states[0], cells[0] = h, c
        times_u = _packed(u, None, gates)
        ut = u.mT if times_u else u.mT.contiguous()  # read once per step
        xp, view = _fast_library(u.dtype)
        memory, g_all, c_all, h_all = map(view, (torch.empty_like(h), gates, cells, states))
        columns = (g_all[..., k * hidden : (k + 1) * hidden] for k in range(4))
        rows = (states, gates, gates[..., : 3 * hidden], g_all, *columns, c_all, c_all[1:])
        for h, g, ifo, g_view, i, f, o, candidate, c_old, c_new, h_new in zip(
            *rows, h_all[1:], strict=False
        ):
            if times_u:  # gates overwrite wx
                xp.add(g_view, view(times_u(h)), out=g_view)
            else:
                g.addmm_(h, ut)
            ifo.sigmoid_()
            xp.tanh(candidate, out=candidate)
            xp.multiply(f, c_old, out=c_new)
            xp.add(c_new, xp.multiply(i, candidate, out=memory), out=c_new)
            xp.tanh(c_new, out=h_new)
            xp.multiply(h_new, o, out=h_new)
        ctx.mark_dirty(wx)
        ctx.save_for_backward(wx, states, cells, u)
        return states[1:], cells[1:], wx

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor, ...]:
        wx, states, cells, u = ctx.saved_tensors
        gates, d_gates = (x.reshape(len(states) - 1, -1, len(u)) for x in (wx, grads[2]))
        d_states, d_cells = grads[:2]
        hidden, before = states.shape[-1], states[:-1]
        i, f, o, candidate = gates.chunk(4, -1)
        shown = torch.tanh(cells[1:])
        dc_dh = o * (1 - shown * shown)
        slopes = gates * (1 - gates)
        slopes[..., 3 * hidden :] = 1 - candidate * candidate
        d_wx = d_gates * slopes  # gradients of the gates themselves
        # each gate's derivative times its factor: i and c̃ each other, f the old cell, o tanh c
        slopes *= torch.cat([candidate, cells[:-1], shown, i], -1)
        carry, dc = torch.zeros_like(states[0]), torch.zeros_like(states[0])
        rows = (d_states, d_cells, d_wx, slopes, dc_dh, f)
        times_ut = _packed(u.mT, None, d_wx)
        for ds, dcell, d, k, kc, f_t in _times(*rows, back=True):
            dh = carry.add_(ds)
            dc.add_(dcell).addcmul_(dh, kc)
            d.addcmul_(k, torch.cat([dc, dc, dh, dc], -1))
            carry = d @ u if times_ut is None else times_ut(d)
            dc.mul_(f_t)
        d_wx = d_wx.flatten(0, 1)
        return d_wx, carry, dc, linear(d_wx.mT, before.flatten(0, 1).mT)


def _packed(u: Tensor, bias: Tensor | None, gates: Tensor) -> LinearFunction | None:
    """U h + b with packed weights, if the sequence is long enough for packing to pay."""
    time, rows, _ = gates.shape
    pays = time >= MIN_PACKED_SIZE and rows >= (2 if mkl_is_slow() else MIN_PACKED_SIZE)
    return packed_linear(u, bias, rows) if pays else None


def _fast_library(dtype: torch.dtype) -> tuple[Any, Any]:
    """The library of functions with `out`, and the view of a tensor that they take.

    NumPy's calls cost less than torch's, and its tanh a fifth on an AMD CPU, where torch calls MKL.
    """
    if dtype in (torch.float32, torch.float64):
        return np, lambda x: x.detach().numpy()
    return torch, lambda x: x


def _times(*rows: Any, back: bool = False) -> Any:
    """The tensors (or arrays) of each step, first to last or last to first."""
    times = zip(*rows, strict=True)
    return reversed(list(times)) if back else times
