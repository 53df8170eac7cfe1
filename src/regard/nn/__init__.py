"""Layers: parameters and one call of an op."""

from regard.nn.attention import AttentionOptions, Cache, KeysValues, MultiHeadAttention
from regard.nn.attentive import AttentiveRecurrent
from regard.nn.block import BlockOptions, DecoderBlock, EncoderBlock
from regard.nn.embedding import TokenEmbedding
from regard.nn.feedforward import FeedForward
from regard.nn.from_torch import attention_state, from_torch
from regard.nn.norm import Norm, Residual
from regard.nn.patches import ClassToken, PatchEmbedding
from regard.nn.projection import projection
from regard.nn.readout import Readout
from regard.nn.recurrent import Cell, Recurrent
from regard.nn.recurrent_decoder import BahdanauDecoder, LuongDecoder, PlainDecoder, RecurrentMemory
from regard.nn.relative import ALiBiBias, BucketBias, DistanceKeys, RelativeBias, ToeplitzBias
from regard.nn.stack import Decoder, Encoder
from regard.nn.state_attention import StateAttention
from regard.nn.subsample import BandConvolution, Standardise, Subsample

__all__ = [
    "ALiBiBias",
    "AttentionOptions",
    "AttentiveRecurrent",
    "BahdanauDecoder",
    "BandConvolution",
    "BlockOptions",
    "BucketBias",
    "Cache",
    "Cell",
    "ClassToken",
    "Decoder",
    "DecoderBlock",
    "DistanceKeys",
    "Encoder",
    "EncoderBlock",
    "FeedForward",
    "KeysValues",
    "LuongDecoder",
    "MultiHeadAttention",
    "Norm",
    "PatchEmbedding",
    "PlainDecoder",
    "Readout",
    "Recurrent",
    "RecurrentMemory",
    "RelativeBias",
    "Residual",
    "Standardise",
    "StateAttention",
    "Subsample",
    "ToeplitzBias",
    "TokenEmbedding",
    "attention_state",
    "from_torch",
    "projection",
]
