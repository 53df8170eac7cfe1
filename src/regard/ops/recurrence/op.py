"""The public recurrence function: one signature, several backends."""

from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import BackendError, ShapeError
from regard.ops.kernels import cannot_run
from regard.ops.masks import length_mask
from regard.ops.maybe_none import MaybeNone
from regard.ops.recurrence import cpu_with_gates, fused, reference
from regard.ops.recurrence.reference import CellStep, RNNStep, SequenceCall, dispatch_sequence
from regard.ops.recurrence.weights import CellWeights, RNNWeights, State

RecurrenceBackend = Literal["auto", "reference", "fused", "gates"]


class RecurrenceResult(NamedTuple):
    """The result of a recurrence: all outputs h, the final state, and the gates if requested."""

    out: Float[Tensor, "*batch time hidden"]
    state: State
    gates: CellStep | MaybeNone


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
    """Run a recurrent cell over a sequence.

    s_t = step(x_t, s_{t-1}),   s_0 = state, or zeros

    Args:
        x: the sequence.
        weights: weights of an RNN, GRU or LSTM cell.
        state: the initial state, zeros by default.
        lengths: length of each sequence; after it the state is kept, outputs and gates are 0.
        reverse: run from the last step to the first.
        gates: also return every gate and state, as a step whose tensors have a time axis.
        backend: "reference" is the definition; "fused" torch's kernel, which returns no gates;
            "gates" returns them, on CPU by a loop with its own backward pass (differentiable once),
            on CUDA by recomputing them after the kernel. "auto" is fused, or gates if requested.

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
    """Compute a checked call."""
    x, weights, state, lengths = call.x, call.weights, call.state, call.lengths
    batch, (time, _) = x.shape[:-2], x.shape[-2:]
    x, state = x.reshape(-1, *x.shape[-2:]), tuple(s.reshape(-1, weights.hidden) for s in state)
    if lengths is not None:
        lengths = lengths.reshape(-1)
        x = x.masked_fill(~length_mask(lengths, time)[..., None], 0)  # padding may hold NaN
    if call.reverse:
        x = reverse_sequences(x, lengths)
    match _choose(call.backend, x, weights, call.gates):
        case "fused":
            (out, state), trace = fused.recur(x, weights, state, lengths), None
        case "gates" if isinstance(weights, RNNWeights):  # has no gates
            out, state = fused.recur(x, weights, state, lengths)
            trace = RNNStep(out)
        case "gates":
            run = fused.recur_with_gates if x.is_cuda else cpu_with_gates.recur
            out, state, trace = run(x, weights, state, lengths)
        case _:
            out, state, trace = reference.recur(x, weights, state, lengths)
    if call.reverse:
        out = reverse_sequences(out, lengths)
        trace = trace and trace._make(reverse_sequences(values, lengths) for values in trace)
    state = tuple(s.reshape(*batch, -1) for s in state)
    out = out.reshape(*batch, time, -1)
    if not call.gates or trace is None:
        return RecurrenceResult(out, state, None)
    trace = trace._make(values.reshape(*batch, time, -1) for values in trace)
    return RecurrenceResult(out, state, trace)


def _choose(backend: RecurrenceBackend, x: Tensor, weights: CellWeights, gates: bool) -> str:
    if backend not in get_args(RecurrenceBackend):
        raise BackendError(
            f"backend: needs auto, reference, fused or gates, got {backend!r}; try auto"
        )
    reason = fused.refusal(x, weights)
    if backend == "auto":
        # For a single step, reordering the gates for torch's kernel costs more than it saves.
        return "reference" if reason or x.shape[1] == 1 else "gates" if gates else "fused"
    if backend == "fused" and gates:
        reason = "torch's kernels do not return their gates"
    if reason and backend != "reference":
        raise cannot_run(backend, reason)
    return backend


def reverse_sequences(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Reverse each sequence in time, keeping its padding at the end."""
    if lengths is None:
        return x.flip(1)
    t = torch.arange(x.shape[1], device=x.device)
    index = torch.where(t < lengths[:, None], lengths[:, None] - 1 - t, t)
    return x.gather(1, index[..., None].expand_as(x))


def _check(x: Tensor, weights: CellWeights, state: State, lengths: Tensor | None) -> None:
    batch, time = tuple(x.shape[:-2]), x.shape[-2]
    weights.check(x, state, batch)
    if time == 0:
        raise ShapeError("x: needs at least one time step, got 0")
    if lengths is None:
        return
    if lengths.shape != batch:
        raise ShapeError(f"lengths: needs one per sequence, {batch}, got {tuple(lengths.shape)}")
    if lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise ShapeError(f"lengths: needs integers, got {lengths.dtype}; try lengths.long()")
    if lengths.device != x.device:
        raise ShapeError(f"lengths: needs x's device, {x.device}, got {lengths.device}; try .to")
    if lengths.numel() and not (lengths.min() >= 0 and lengths.max() <= time):
        raise ShapeError(
            f"lengths: needs 0 to time={time}, got {int(lengths.min())} to {int(lengths.max())}"
        )
