"""Recurrence: a state that is carried from step to step, in three forms of one definition."""

from regard.ops.recurrence.op import Walk, recur
from regard.ops.recurrence.steps import (
    GRUStep,
    LSTMStep,
    RNNStep,
    Step,
    gru_step,
    lstm_step,
    rnn_step,
)
from regard.ops.recurrence.weights import GRUWeights, LSTMWeights, RNNWeights, State, Weights

__all__ = [
    "GRUStep",
    "GRUWeights",
    "LSTMStep",
    "LSTMWeights",
    "RNNStep",
    "RNNWeights",
    "Walk",
    "State",
    "Step",
    "Weights",
    "gru_step",
    "lstm_step",
    "recur",
    "rnn_step",
]
