"""Recurrent cells and sequences: one definition, several backends."""

from regard.ops.recurrence.op import RecurrenceResult, recur
from regard.ops.recurrence.reference import (
    CellStep,
    GRUStep,
    LSTMStep,
    RNNStep,
    gru_step,
    lstm_step,
    rnn_step,
)
from regard.ops.recurrence.weights import CellWeights, GRUWeights, LSTMWeights, RNNWeights, State

__all__ = [
    "GRUStep", "GRUWeights", "LSTMStep", "LSTMWeights", "RNNStep", "RNNWeights",
    "RecurrenceResult", "State", "CellStep", "CellWeights", "gru_step", "lstm_step", "recur",
    "rnn_step",
]  # fmt: skip
