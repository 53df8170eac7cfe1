"""Reads the calls of transformers' linear mixers: their arguments as a `LinearMixer`.

Each of their functions gets keys, values, decay and write strength in its own form (`READERS`).
"""

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.errors import LookError
from regard.inspection.adapters.snapshot import snapshot
from regard.ops.mixers import (
    LinearMixer,
    MixResult,
    delta_rule,
    diagonal_recurrence,
    linear_attention,
    mamba2,
)
from regard.ops.mixers.short_convolution import ShortConvolution

Given = dict[str, Any]  # the arguments of a function by name
Reader = Callable[[Given], "Described"]
PACKED = ("cu_seqlens", "cu_seq_lens_q", "seq_idx")  # several sequences in one row
KERNELS = frozenset(("mamba_ssm", "kernels"))  # packages whose functions replace those of torch
MAX_DECAYS = 1 << 28  # of Mamba-1, one per channel and state: 1 GiB of float32
running = threading.local()  # .rows: tokens of the running convolution


@dataclass(frozen=True)
class Unrecorded:
    """A call that no description covers, with the reason."""

    reason: str


@dataclass(frozen=True)
class Described:
    """A call of a model in regard's terms, and how its result is read and written."""

    mixer: LinearMixer | ShortConvolution
    read: Callable[[Any], MixResult]
    write: Callable[[MixResult], Any]
    # arguments with which the function returns the output alone; `write` does the rest
    changes: Given = field(default_factory=dict)


def describe(reader: Reader, given: Given) -> Described | Unrecorded:
    if name := next((name for name in PACKED if given.get(name) is not None), None):
        return Unrecorded(f"packed sequences ({name}) are not recorded; try one per row")
    if given.get("z") is not None and given["z"].is_cuda and not KERNELS.isdisjoint(sys.modules):
        return Unrecorded("its kernel applies the gate, so that the output is not seen alone")
    try:
        return reader(given)
    except Exception as error:  # of a version of transformers with other arguments
        reason = str(error).partition("\n")[0][:120]
        return Unrecorded(f"its call could not be read: {type(error).__name__}: {reason}")


def _rows_first(*tensors: Tensor) -> list[Tensor]:
    """(batch, time, head, …) to (batch, head, time, …), in float32 as these functions compute."""
    return [x.transpose(1, 2).float() for x in tensors]


def _read_delta_rule(given: Given) -> Described:
    q, k, v, g, beta = _rows_first(*(given[x] for x in ("query", "key", "value", "g", "beta")))
    if given.get("use_qk_l2norm_in_kernel"):
        q, k = (x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for x in (q, k))
    state, dtype = given.get("initial_state"), given["query"].dtype
    state = None if state is None else snapshot(state).float()
    mixer = delta_rule(q * q.shape[-1] ** -0.5, k, v, g, beta, state=state)

    def write(result: MixResult) -> tuple[Tensor, Tensor | None]:
        last = result.state if given.get("output_final_state") else None
        return result.out.transpose(1, 2).to(dtype).contiguous(), last

    return Described(mixer, lambda x: MixResult(x[0].transpose(1, 2), x[1]), write)


def _step_size(given: Given, bias: str, softplus: str) -> Tensor:
    """Δ of a state space, in the type of the model."""
    dt = given["dt"]
    if given.get(bias) is not None:
        dt = dt + given[bias].to(dt.dtype)
    dt = F.softplus(dt) if given.get(softplus) else dt
    return dt.clamp(*given["dt_limit"]) if "dt_limit" in given else dt


def _read_mamba2(given: Given) -> Described:
    x, dt = given["hidden_states"], _step_size(given, "dt_bias", "dt_softplus")
    c, b, v, dt = _rows_first(given["C"], given["B"], x, dt)
    state, d = given.get("initial_states"), given.get("D")
    state = None if state is None else snapshot(state).float().mT
    mixer = mamba2(c, b, v, dt, given["A"].float(), None if d is None else d.float(), state=state)
    has_state = bool(given.get("return_final_states"))

    def read(native: Any) -> MixResult:
        out, last = native if has_state else (native, None)
        return MixResult(out.transpose(1, 2), None if last is None else last.mT)

    def write(result: MixResult) -> Any:
        out = result.out.transpose(1, 2).contiguous()
        return (out, result.state.mT) if has_state else out

    return Described(mixer, read, write)


def _read_mamba2_step(given: Given) -> Described:
    """One token; the step size, A and D are repeated over the values of a head."""
    given["dt"] = given["dt"][..., 0]
    given["dt_bias"] = None if given.get("dt_bias") is None else given["dt_bias"][:, 0]
    c, b, v = (given[x][:, :, None].float() for x in ("C", "B", "hidden_states"))
    dt = _step_size(given, "dt_bias", "dt_softplus")[..., None].float()
    d = None if given.get("D") is None else given["D"][:, 0].float()
    state = snapshot(given["state"]).float().mT
    mixer = mamba2(c, b, v, dt, given["A"][:, 0, 0].float(), d, state=state)
    return _step(mixer, given)


def _step(mixer: LinearMixer, given: Given) -> Described:
    """One token of a state space: the state is updated in place, the gate z comes after."""
    state, z, dtype = given["state"], given.get("z"), given["hidden_states"].dtype
    is_mamba2 = state.ndim == 4  # each channel of Mamba-1 is a head of one value

    def read(out: Tensor) -> MixResult:
        last = snapshot(state)
        if is_mamba2:
            return MixResult(out[:, :, None], last.mT)
        return MixResult(out[..., None, None], last[..., None])

    def write(result: MixResult) -> Tensor:
        state.copy_(result.state.mT if is_mamba2 else result.state[..., 0])
        out = (result.out[:, :, 0] if is_mamba2 else result.out[..., 0, 0]).to(dtype)
        return out if z is None else (out * F.silu(z)).to(dtype)

    return Described(mixer, read, write, {} if z is None else {"z": None})


def _read_mamba1(given: Given) -> Described:
    """Each channel is a head of one value; the gate z comes after the mixer."""
    x, z, is_step = given["hidden_states"], given.get("z"), "state" in given
    given["dt"] = given["dt"] if is_step else given["dt"].mT  # the bias is one per channel
    bias, softplus = ("dt_bias", "dt_softplus") if is_step else ("delta_bias", "delta_softplus")
    dt = _step_size(given, bias, softplus).float()
    c, b = (given[name][:, None].float() for name in ("C", "B"))
    if is_step:
        c, b, dt, v = c[:, :, None], b[:, :, None], dt[..., None], x[..., None, None]
        state = snapshot(given["state"]).float()[..., None]
    else:
        c, b, dt, v, state = c.mT, b.mT, dt.mT, x[..., None], None
    if (size := dt.numel() * c.shape[-1]) > MAX_DECAYS:
        raise LookError(f"tokens: needs at most {MAX_DECAYS} decays of channels, got {size}")
    d = None if given.get("D") is None else given["D"].float()
    mixer = mamba2(c, b, v.float(), dt, given["A"].float(), d, state=state)

    if is_step:
        return _step(mixer, given)
    has_state = bool(given.get("return_last_state"))

    def read(native: Any) -> MixResult:
        out, last = native if has_state else (native, None)
        return MixResult(out[..., None], None if last is None else last[..., None])

    def write(result: MixResult) -> Any:
        out = result.out[..., 0] if z is None else result.out[..., 0] * F.silu(z)
        return (out, result.state[..., 0]) if has_state else out

    return Described(mixer, read, write, {"z": None})


def _read_channels(given: Given) -> Described:
    """The RG-LRU: a recurrence per channel."""
    x, gate, reset = given["hidden_states"], given["recurrent_gate"], given["reset"]
    state = given["recurrent_states"]
    decay = gate.float().clamp(min=torch.finfo(torch.float32).tiny).log()
    resets = reset[..., 0].expand(x.shape[:2])
    state = None if state is None else snapshot(state).float().to(x.device)
    mixer = diagonal_recurrence(x.float(), decay, state=state, resets=resets)

    def read(native: Any) -> MixResult:
        return MixResult(native[0].mT[..., None], native[1][..., None, None])

    def write(result: MixResult) -> tuple[Tensor, Tensor]:
        return result.out[..., 0].mT.to(x.dtype), result.state[..., 0, 0]

    return Described(mixer, read, write)


def read_convolution(given: Given) -> Described:
    x, taps, bias = given["hidden_states"], given["weight"], given.get("bias")
    activation, rows = given.get("activation"), vars(running).pop("rows", None)
    if activation not in (None, "silu", "swish"):
        raise LookError(f"activation: needs silu or none, got {activation!r}")
    before = given.get("conv_state")
    if before is not None:
        before = snapshot(before)
    elif rows is not None and rows < x.shape[-1]:
        before, x = x[..., :-rows], x[..., -rows:]
    options = {"bias": bias, "silu": activation is not None, "state": before}
    mixer = ShortConvolution(x=x, taps=taps, **options)
    extra = given["hidden_states"].shape[-1] - mixer.time

    def write(result: MixResult) -> Tensor:
        if (cached := given.get("conv_state")) is not None and before is not None:
            cached.copy_(torch.cat([before, x], -1)[..., -cached.shape[-1] :])
        return F.pad(result.out[..., 0], (extra, 0)).to(x.dtype)

    return Described(mixer, lambda out: MixResult(out[..., extra:, None], None), write)


def read_lightning(module: Any, qkv: Tensor, model_out: Tensor, given: Given) -> Described:
    mask, heads = given.get("attention_mask"), module.num_attention_heads
    mask_padding = sys.modules[type(module).__module__].apply_mask_to_padding_states
    qkv = mask_padding(module.act_fn(qkv), mask).unflatten(-1, (heads, -1))
    q, k, v = _rows_first(*qkv.split(module.head_dim, 3))
    cache = given.get("past_key_values")
    state = None if cache is None else cache.get_linear_cache(module.layer_idx)
    state = None if state is None else snapshot(state).float()
    log_decay = -module.slope_rate.flatten().float()
    mixer = linear_attention(q, k, v, log_decay, state=state)

    def read(native: Tensor) -> MixResult:
        out = native.unflatten(-1, (heads, -1)).transpose(1, 2)
        if cache is None:
            return MixResult(out, None)
        left = torch.arange(mixer.time, 0, -1, device=v.device) - 1
        last = (k * (log_decay[:, None] * left).exp()[..., None]).mT @ v
        if state is not None:
            last = last + (log_decay * mixer.time).exp()[:, None, None] * state
        return MixResult(out, last)

    def write(result: MixResult) -> tuple[Tensor, Tensor]:
        out = result.out.transpose(1, 2).flatten(2).to(model_out.dtype)
        return out, result.state.to(model_out.dtype)

    return Described(mixer, read, write)


READERS: dict[str, Reader] = {
    "torch_chunk_gated_delta_rule": _read_delta_rule,
    "torch_recurrent_gated_delta_rule": _read_delta_rule,
    "chunk_kimi_delta_attention": _read_delta_rule,
    "recurrent_kimi_delta_attention": _read_delta_rule,
    "mamba2_chunk_scan": _read_mamba2,
    "mamba2_selective_state_update": _read_mamba2_step,
    "mamba_selective_scan": _read_mamba1,
    "mamba_selective_state_update": _read_mamba1,
    "_rnn_scan": _read_channels,
    "causal_conv1d_fn": read_convolution,
    "causal_conv1d_update": read_convolution,
}
