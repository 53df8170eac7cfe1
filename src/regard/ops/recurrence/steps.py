"""One step of each recurrent cell, with every gate to be seen."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from regard.errors import ShapeError
from regard.ops.recurrence.intercept import StepCall, dispatch_step
from regard.ops.recurrence.weights import CellWeights, GRUWeights, LSTMWeights, RNNWeights, State


class RNNStep(NamedTuple):
    """What one step of a vanilla RNN made: the new state.

    >>> RNNStep(h=torch.ones(1)).state
    (tensor([1.]),)
    """

    h: Float[Tensor, "*batch hidden"]

    @property
    def state(self) -> State:
        return (self.h,)


class GRUStep(NamedTuple):
    """What one step of a GRU made: update and reset gate, candidate, new state.

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
    """What one step of an LSTM made: three gates, candidate, new cell and new state.

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
    """The simplest memory: mix what was known with what is seen.

    h' = tanh(W x + U h)

    >>> weights = RNNWeights(w=torch.tensor([[1.0]]), u=torch.tensor([[-2.0]]))
    >>> rnn_step(torch.tensor([1.0]), torch.tensor([0.5]), weights)
    RNNStep(h=tensor([0.]))
    """
    return _rnn(_seen(x, (h,), weights), (h,), weights)


def gru_step(
    x: Float[Tensor, "*batch dim"], h: Float[Tensor, "*batch hidden"], weights: GRUWeights
) -> GRUStep:
    """A memory that is overwritten as far as z says.

    z = σ(W_z x + U_z h),   r = σ(W_r x + U_r h)
    ĥ = tanh(W x + r ∘ (U h)),   h' = (1 - z) ∘ h + z ∘ ĥ

    z = 0 keeps the state (torch's z is 1 minus this one), and r acts after the product U h, bias
    of U included: U (r ∘ h) would be another model.

    >>> weights = GRUWeights(w=torch.zeros(3, 1), u=torch.zeros(3, 1))
    >>> gru_step(torch.tensor([1.0]), torch.tensor([0.5]), weights)
    GRUStep(z=tensor([0.5000]), r=tensor([0.5000]), candidate=tensor([0.]), h=tensor([0.2500]))
    """
    return _gru(_seen(x, (h,), weights), (h,), weights)


def lstm_step(
    x: Float[Tensor, "*batch dim"],
    h: Float[Tensor, "*batch hidden"],
    c: Float[Tensor, "*batch hidden"],
    weights: LSTMWeights,
) -> LSTMStep:
    """A memory c that is kept, added to and shown as its gates say.

    i, f, o = σ(W x + U h), each with its own W and U,   c̃ = tanh(W_c x + U_c h)
    c' = f ∘ c + i ∘ c̃,   h' = o ∘ tanh c'

    >>> step = lstm_step(*torch.ones(3, 1), LSTMWeights(torch.zeros(4, 1), torch.zeros(4, 1)))
    >>> step.f, step.c
    (tensor([0.5000]), tensor([0.5000]))
    """
    return _lstm(_seen(x, (h, c), weights), (h, c), weights)


def cell_step(x: Tensor, state: State, weights: CellWeights) -> CellStep:
    """One step of whatever cell these weights are for."""
    return cell_step_projected(_seen(x, state, weights), state, weights)


def cell_step_projected(wx: Tensor, state: State, weights: CellWeights) -> CellStep:
    """One step of any cell, W x + b_W being known already."""
    return dispatch_step(StepCall(wx, state, weights), _compute)


def _compute(call: StepCall) -> CellStep:
    return _STEPS[type(call.weights)](call.wx, call.state, call.weights)


def _rnn(wx: Tensor, state: State, weights: CellWeights) -> RNNStep:
    return RNNStep(torch.tanh(wx + _remembered(state[0], weights)))


def _gru(wx: Tensor, state: State, weights: CellWeights) -> GRUStep:
    (h,) = state
    uh, gates = _remembered(h, weights), 2 * weights.hidden
    z, r = torch.sigmoid(wx[..., :gates] + uh[..., :gates]).chunk(2, -1)
    candidate = torch.tanh(torch.addcmul(wx[..., gates:], r, uh[..., gates:]))
    # under autocast the products are half precision and the state is not; lerp does not promote
    return GRUStep(z, r, candidate, torch.lerp(h, candidate.to(h.dtype), z.to(h.dtype)))


def _lstm(wx: Tensor, state: State, weights: CellWeights) -> LSTMStep:
    h, c = state
    both, gates = wx + _remembered(h, weights), 3 * weights.hidden
    i, f, o = torch.sigmoid(both[..., :gates]).chunk(3, -1)
    candidate = torch.tanh(both[..., gates:])
    c = torch.addcmul(f * c, i, candidate)
    return LSTMStep(i, f, o, candidate, c, o * torch.tanh(c))


_STEPS = {RNNWeights: _rnn, GRUWeights: _gru, LSTMWeights: _lstm}


def _remembered(h: Tensor, weights: CellWeights) -> Tensor:
    return F.linear(h, weights.u, weights.u_bias)


def _seen(x: Tensor, state: State, weights: CellWeights) -> Tensor:
    """W x + b_W, once the widths are known to fit."""
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
