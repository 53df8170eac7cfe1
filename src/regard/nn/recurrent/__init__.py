"""Recurrent layers, with and without attention, and recurrent decoders."""

from regard.nn.recurrent.attentive import AttentiveRecurrent
from regard.nn.recurrent.decoders import (
    BahdanauDecoder,
    LuongDecoder,
    RecurrentDecoder,
    RecurrentMemory,
)
from regard.nn.recurrent.layers import Recurrent, RecurrentCell
from regard.nn.recurrent.state_attention import StateAttention

__all__ = [
    "AttentiveRecurrent",
    "BahdanauDecoder",
    "LuongDecoder",
    "Recurrent",
    "RecurrentCell",
    "RecurrentDecoder",
    "RecurrentMemory",
    "StateAttention",
]
