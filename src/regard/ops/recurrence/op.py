"""The recurrence that callers see: a whole sequence, one signature, three forms."""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import BackendError, ShapeError
from regard.ops.recurrence import cpu_with_gates, cuda_with_gates, fused, reference
from regard.ops.recurrence.intercept import SequenceCall, dispatch_sequence
from regard.ops.recurrence.steps import CellStep
from regard.ops.recurrence.weights import CellWeights, State

RecurrenceBackend = Literal["auto", "reference", "fused", "gates"]


class RecurrenceResult(NamedTuple):
    """What a recurrence gave: h at every time, the state to go on from, and the gates if asked.

    >>> RecurrenceResult(torch.zeros(1, 2), (torch.zeros(2),), None).gates is None
    True
    """

    out: Float[Tensor, "*batch time hidden"]
    state: State
    gates: CellStep | None


def recur(
    x: Float[Tensor, "*batch time dim"],
    weights: CellWeights,
    state: State | None = None,
    *,
    lengths: Int[Tensor, "*batch"] | None = None,
    reverse: bool = False,
    gates: bool = False,
    backend: RecurrenceBackend = "auto",
) -> RecurrenceResult:
    """A cell walked along a sequence, from left to right or in reverse.

    s_t = step(x_t, s_{t-1}),   s_0 = state, or zeros

    From `lengths` on there is nothing: the state stays as it was, outputs and gates are 0. With
    gates=True every gate and state comes back as a step whose tensors have a time axis. Forms:
    `reference` is the definition, `fused` torch's kernel, which keeps its gates to itself; `open`
    has them: on the CPU by a walk with a way back of its own (once), on CUDA by that kernel and all
    gates afterwards. `auto` is fused, or open if gates are asked for.

    >>> from regard.ops import RNNWeights
    >>> count = RNNWeights(w=torch.tensor([[1.0]]), u=torch.tensor([[1.0]]))
    >>> recur(torch.tensor([[0.1], [0.0], [0.0]]), count).out.T
    tensor([[0.0997, 0.0993, 0.0990]])
    """
    if state is None:
        zero = x.new_zeros(*x.shape[:-2], weights.hidden, dtype=weights.u.dtype)
        state = (zero,) * len(weights.states)
    _check(x, weights, state, lengths)
    return dispatch_sequence(
        SequenceCall(x, weights, state, lengths, reverse, gates, backend), compute_recurrence
    )


def compute_recurrence(call: SequenceCall) -> RecurrenceResult:
    """The walk that was asked for, checked already."""
    x, weights, state, lengths = call.x, call.weights, call.state, call.lengths
    batch, (time, _) = x.shape[:-2], x.shape[-2:]
    x, state = x.reshape(-1, *x.shape[-2:]), tuple(s.reshape(-1, weights.hidden) for s in state)
    if lengths is not None:
        lengths = lengths.reshape(-1)
        x = x.masked_fill(
            ~reference.valid_steps(lengths, time), 0
        )  # a NaN in the padding stays there
    if call.reverse:
        x = reverse_sequences(x, lengths)
    match _choose(call.backend, x, weights, call.gates):
        case "fused":
            (out, state), trace = fused.recur(x, weights, state, lengths), None
        case "gates":
            backend = cuda_with_gates if x.is_cuda else cpu_with_gates
            out, state, trace = backend.recur(x, weights, state, lengths)
        case _:
            out, state, trace = reference.recur(x, weights, state, lengths)
    if call.reverse:
        out = reverse_sequences(out, lengths)
        trace = trace and type(trace)(*(reverse_sequences(values, lengths) for values in trace))
    state = tuple(s.reshape(*batch, -1) for s in state)
    if call.gates and trace is not None:
        trace = type(trace)(*(values.reshape(*batch, time, -1) for values in trace))
    return RecurrenceResult(out.reshape(*batch, time, -1), state, trace if call.gates else None)


def _choose(form: RecurrenceBackend, x: Tensor, weights: CellWeights, gates: bool) -> str:
    reason = fused.refusal(x, weights)
    match form:
        case "auto":
            # For a single step, handing torch its own order of gates costs more than it saves.
            if reason or x.shape[1] == 1:
                return "reference"
            return "gates" if gates else "fused"
        case "reference":
            return form
        case "fused" | "gates":
            if form == "fused" and gates:
                reason = "torch's kernels do not hand out their gates"
            if reason:
                raise BackendError(f"backend: {form} cannot run here, {reason}; try backend='auto'")
            return form
        case other:
            raise BackendError(
                f"backend: needs auto, reference, fused or gates, got {other!r}; try auto"
            )


def reverse_sequences(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Each sequence back to front, its padding left where it is."""
    if lengths is None:
        return x.flip(1)
    t = torch.arange(x.shape[1], device=x.device)
    mirrored = torch.where(t < lengths[:, None], lengths[:, None] - 1 - t, t)
    return x.gather(1, mirrored[..., None].expand_as(x))


def _check(x: Tensor, weights: CellWeights, state: State, lengths: Tensor | None) -> None:
    batch, (time, dim) = tuple(x.shape[:-2]), x.shape[-2:]
    if dim != weights.dim:
        raise ShapeError(f"x: needs dim={weights.dim} as W has columns, got {dim}")
    if time == 0:
        raise ShapeError("x: needs at least one time step, got 0")
    if len(state) != len(weights.states):
        raise ShapeError(f"state: needs ({', '.join(weights.states)}), got {len(state)} tensors")
    for name, s in zip(weights.states, state, strict=True):
        if s.shape != (*batch, weights.hidden):
            raise ShapeError(f"{name}: needs {(*batch, weights.hidden)}, got {tuple(s.shape)}")
    if lengths is None:
        return
    if lengths.shape != batch:
        raise ShapeError(f"lengths: needs one a sequence, {batch}, got {tuple(lengths.shape)}")
    if lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise ShapeError(f"lengths: needs whole numbers, got {lengths.dtype}; try lengths.long()")
    if lengths.device != x.device:
        raise ShapeError(f"lengths: needs x's device, {x.device}, got {lengths.device}; try .to")
    if lengths.numel() and not (lengths.min() >= 0 and lengths.max() <= time):
        raise ShapeError(
            f"lengths: needs 0 to time={time}, got {int(lengths.min())} to {int(lengths.max())}"
        )
