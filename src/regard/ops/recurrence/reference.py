"""The recurrence by its equation: steps of each cell, and sequences step by step.

The reference for other backends. Steps and sequences pass an interception point, where recorders
register.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from regard.ops.intercept import InterceptorRegistry
from regard.ops.masks import length_mask
from regard.ops.recurrence.weights import CellWeights, GRUWeights, LSTMWeights, RNNWeights, State

Input = Float[Tensor, "*batch dim"]
Hidden = Float[Tensor, "*batch hidden"]


@dataclass(frozen=True)
class SequenceCall:
    """The arguments of one recurrence; x is (*batch, time, dim)."""

    x: Tensor
    weights: CellWeights
    state: State
    lengths: Tensor | None = None
    reverse: bool = False
    gates: bool = False
    backend: Any = "auto"


@dataclass(frozen=True)
class StepCall:
    """The arguments of one step, W x + b_W already computed."""

    wx: Tensor
    state: State
    weights: CellWeights


@runtime_checkable
class RecurrentInterceptor(Protocol):
    """Receives every sequence, and every step that is computed by itself, with `proceed`.

    The reference backend also dispatches each step of a sequence; the other backends do not.
    """

    def on_sequence(self, call: SequenceCall, proceed: Callable[[SequenceCall], Any]) -> Any: ...

    def on_step(self, call: StepCall, proceed: Callable[[StepCall], Any]) -> Any: ...


_interceptors: InterceptorRegistry[RecurrentInterceptor] = InterceptorRegistry(
    "recurrent interceptors"
)


# registers an interceptor of recurrent layers; the arguments are those of `intercepting`
intercepting_recurrence = _interceptors.register
# pass a sequence or a step through all interceptors, then compute it
dispatch_sequence = partial(_interceptors.dispatch, method="on_sequence")
dispatch_step = partial(_interceptors.dispatch, method="on_step")


class RNNStep(NamedTuple):
    """One step of a vanilla RNN: the new state.

    >>> RNNStep(h=torch.ones(1)).state
    (tensor([1.]),)
    """

    h: Hidden

    @property
    def state(self) -> State:
        return (self.h,)


class GRUStep(NamedTuple):
    """One step of a GRU: update gate, reset gate, candidate, new state.

    >>> GRUStep(*torch.arange(4.0)).state
    (tensor(3.),)
    """

    z: Hidden
    r: Hidden
    candidate: Hidden
    h: Hidden

    @property
    def state(self) -> State:
        return (self.h,)


class LSTMStep(NamedTuple):
    """One step of an LSTM: input, forget and output gate, candidate, new cell, new state.

    >>> LSTMStep(*torch.arange(6.0)).state
    (tensor(5.), tensor(4.))
    """

    i: Hidden
    f: Hidden
    o: Hidden
    candidate: Hidden
    c: Hidden
    h: Hidden

    @property
    def state(self) -> State:
        return (self.h, self.c)


CellStep = RNNStep | GRUStep | LSTMStep


def rnn_step(x: Input, h: Hidden, weights: RNNWeights) -> RNNStep:
    """One step of a vanilla (Elman) RNN.

    h' = tanh(W x + U h)

    >>> weights = RNNWeights(w=torch.tensor([[1.0]]), u=torch.tensor([[-2.0]]))
    >>> rnn_step(torch.tensor([1.0]), torch.tensor([0.5]), weights)
    RNNStep(h=tensor([0.]))
    """
    return _rnn(_project_input(x, (h,), weights), (h,), weights)


def gru_step(x: Input, h: Hidden, weights: GRUWeights) -> GRUStep:
    """One step of a GRU.

    z = σ(W_z x + U_z h),   r = σ(W_r x + U_r h)
    ĥ = tanh(W x + r ∘ (U h)),   h' = (1 - z) ∘ h + z ∘ ĥ

    z = 0 keeps the state (torch's z is 1 minus this one). r is applied after U h and its bias;
    U (r ∘ h) is a different model.

    >>> weights = GRUWeights(w=torch.zeros(3, 1), u=torch.zeros(3, 1))
    >>> gru_step(torch.tensor([1.0]), torch.tensor([0.5]), weights)
    GRUStep(z=tensor([0.5000]), r=tensor([0.5000]), candidate=tensor([0.]), h=tensor([0.2500]))
    """
    return _gru(_project_input(x, (h,), weights), (h,), weights)


def lstm_step(x: Input, h: Hidden, c: Hidden, weights: LSTMWeights) -> LSTMStep:
    """One step of an LSTM.

    i, f, o = σ(W x + U h), each with another W and U,   c̃ = tanh(W_c x + U_c h)
    c' = f ∘ c + i ∘ c̃,   h' = o ∘ tanh c'

    >>> weights = LSTMWeights(torch.zeros(4, 1), torch.zeros(4, 1))
    >>> step = lstm_step(*torch.ones(3, 1), weights)
    >>> step.f, step.c
    (tensor([0.5000]), tensor([0.5000]))
    """
    return _lstm(_project_input(x, (h, c), weights), (h, c), weights)


def cell_step(x: Tensor, state: State, weights: CellWeights) -> CellStep:
    """One step of the cell that the weights belong to."""
    return cell_step_projected(_project_input(x, state, weights), state, weights)


def cell_step_projected(wx: Tensor, state: State, weights: CellWeights) -> CellStep:
    """One step of a cell, with W x + b_W already computed."""
    return dispatch_step(StepCall(wx, state, weights), _compute)


def _compute(call: StepCall) -> CellStep:
    return _STEPS[type(call.weights)](call.wx, call.state, call.weights)


def _rnn(wx: Tensor, state: State, weights: CellWeights) -> RNNStep:
    return RNNStep(torch.tanh(wx + _project_state(state[0], weights)))


def _gru(wx: Tensor, state: State, weights: CellWeights) -> GRUStep:
    (h,) = state
    z, r, candidate = gru_gates(wx, _project_state(h, weights))
    # under autocast the products are half precision and the state is not; lerp does not promote
    return GRUStep(z, r, candidate, torch.lerp(h, candidate.to(h.dtype), z.to(h.dtype)))


def _lstm(wx: Tensor, state: State, weights: CellWeights) -> LSTMStep:
    h, c = state
    i, f, o, candidate = lstm_gates(wx + _project_state(h, weights))
    c = torch.addcmul(f * c, i, candidate)
    return LSTMStep(i, f, o, candidate, c, o * torch.tanh(c))


def gru_gates(wx: Tensor, uh: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """z, r and the candidate of a GRU from W x + b_W and U h + b_U."""
    (zr_x, x), (zr_h, h) = (a.tensor_split([a.shape[-1] // 3 * 2], -1) for a in (wx, uh))
    z, r = torch.sigmoid(zr_x + zr_h).chunk(2, -1)
    return z, r, torch.tanh(torch.addcmul(x, r, h))


def lstm_gates(both: Tensor) -> tuple[Tensor, ...]:
    """i, f, o and the candidate of an LSTM from W x + U h and the biases."""
    gates, candidate = both.tensor_split([both.shape[-1] // 4 * 3], -1)
    return *torch.sigmoid(gates).chunk(3, -1), torch.tanh(candidate)


_STEPS = {RNNWeights: _rnn, GRUWeights: _gru, LSTMWeights: _lstm}


def _project_state(h: Tensor, weights: CellWeights) -> Tensor:
    return F.linear(h, weights.u, weights.u_bias)


def _project_input(x: Tensor, state: State, weights: CellWeights) -> Tensor:
    weights.check(x, state, tuple(x.shape[:-1]))
    return F.linear(x, weights.w, weights.w_bias)


def recur(
    x: Tensor, weights: CellWeights, state: State, lengths: Tensor | None
) -> tuple[Tensor, State, CellStep]:
    """All outputs, the final state and every gate; x is (sequence, time, dim)."""
    valid = None if lengths is None else length_mask(lengths, x.shape[1])[..., None]
    # W x does not depend on the state: one product for all steps.
    projected = F.linear(x.transpose(0, 1), weights.w, weights.w_bias)
    steps = []
    for t, wx in enumerate(projected.unbind(0)):
        step = cell_step_projected(wx, state, weights)
        steps.append(step)
        if valid is None:
            state = step.state
        else:
            pairs = zip(step.state, state, strict=True)
            state = tuple(torch.where(valid[:, t], new, old) for new, old in pairs)
    trace = steps[0]._make(torch.stack(values, 1) for values in zip(*steps, strict=True))
    trace = zero_padding_steps(trace, lengths)
    return trace.h, state, trace


def zero_padding_steps(trace: CellStep, lengths: Tensor | None) -> CellStep:
    """The gates with zeros in the padding."""
    if lengths is None:
        return trace
    padding = ~length_mask(lengths, trace.h.shape[1])[..., None]
    return trace._make(values.masked_fill(padding, 0) for values in trace)
