"""One step of each recurrent cell, with all gates."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from regard.errors import ShapeError
from regard.ops.recurrence.intercept import StepCall, dispatch_step
from regard.ops.recurrence.weights import CellWeights, GRUWeights, LSTMWeights, RNNWeights, State


class RNNStep(NamedTuple):
    """One step of a vanilla RNN: the new state.

    >>> RNNStep(h=torch.ones(1)).state
    (tensor([1.]),)
    """

    h: Float[Tensor, "*batch hidden"]

    @property
    def state(self) -> State:
        return (self.h,)


class GRUStep(NamedTuple):
    """One step of a GRU: update gate, reset gate, candidate, new state.

    >>> GRUStep(*torch.arange(4.0)).state
    (tensor(3.),)
    """

    z: Float[Tensor, "*batch hidden"]
    r: Float[Tensor, "*batch hidden"]
    candidate: Float[Tensor, "*batch hidden"]
    h: Float[Tensor, "*batch hidden"]

    @property
    def state(self) -> State:
        return (self.h,)


class LSTMStep(NamedTuple):
    """One step of an LSTM: input, forget and output gate, candidate, new cell, new state.

    >>> LSTMStep(*torch.arange(6.0)).state
    (tensor(5.), tensor(4.))
    """

    i: Float[Tensor, "*batch hidden"]
    f: Float[Tensor, "*batch hidden"]
    o: Float[Tensor, "*batch hidden"]
    candidate: Float[Tensor, "*batch hidden"]
    c: Float[Tensor, "*batch hidden"]
    h: Float[Tensor, "*batch hidden"]

    @property
    def state(self) -> State:
        return (self.h, self.c)


CellStep = RNNStep | GRUStep | LSTMStep


def rnn_step(
    x: Float[Tensor, "*batch dim"], h: Float[Tensor, "*batch hidden"], weights: RNNWeights
) -> RNNStep:
    """One step of a vanilla (Elman) RNN.

    h' = tanh(W x + U h)

    >>> weights = RNNWeights(w=torch.tensor([[1.0]]), u=torch.tensor([[-2.0]]))
    >>> rnn_step(torch.tensor([1.0]), torch.tensor([0.5]), weights)
    RNNStep(h=tensor([0.]))
    """
    return _rnn(_project_input(x, (h,), weights), (h,), weights)


def gru_step(
    x: Float[Tensor, "*batch dim"], h: Float[Tensor, "*batch hidden"], weights: GRUWeights
) -> GRUStep:
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


def lstm_step(
    x: Float[Tensor, "*batch dim"],
    h: Float[Tensor, "*batch hidden"],
    c: Float[Tensor, "*batch hidden"],
    weights: LSTMWeights,
) -> LSTMStep:
    """One step of an LSTM.

    i, f, o = σ(W x + U h), each with its own W and U,   c̃ = tanh(W_c x + U_c h)
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
    uh, gates = _project_state(h, weights), 2 * weights.hidden
    z, r = torch.sigmoid(wx[..., :gates] + uh[..., :gates]).chunk(2, -1)
    candidate = torch.tanh(torch.addcmul(wx[..., gates:], r, uh[..., gates:]))
    # under autocast the products are half precision and the state is not; lerp does not promote
    return GRUStep(z, r, candidate, torch.lerp(h, candidate.to(h.dtype), z.to(h.dtype)))


def _lstm(wx: Tensor, state: State, weights: CellWeights) -> LSTMStep:
    h, c = state
    both, gates = wx + _project_state(h, weights), 3 * weights.hidden
    i, f, o = torch.sigmoid(both[..., :gates]).chunk(3, -1)
    candidate = torch.tanh(both[..., gates:])
    c = torch.addcmul(f * c, i, candidate)
    return LSTMStep(i, f, o, candidate, c, o * torch.tanh(c))


_STEPS = {RNNWeights: _rnn, GRUWeights: _gru, LSTMWeights: _lstm}


def _project_state(h: Tensor, weights: CellWeights) -> Tensor:
    return F.linear(h, weights.u, weights.u_bias)


def _project_input(x: Tensor, state: State, weights: CellWeights) -> Tensor:
    """W x + b_W, with the shapes checked."""
    if len(state) != len(weights.states):
        raise ShapeError(f"state: needs ({', '.join(weights.states)}), got {len(state)} tensors")
    if x.shape[-1] != weights.dim:
        raise ShapeError(f"x: needs dim={weights.dim} as W has columns, got {x.shape[-1]}")
    for name, s in zip(weights.states, state, strict=True):
        if s.shape != (*x.shape[:-1], weights.hidden):
            raise ShapeError(
                f"{name}: needs shape {(*x.shape[:-1], weights.hidden)}, got {tuple(s.shape)}"
            )
    return F.linear(x, weights.w, weights.w_bias)
