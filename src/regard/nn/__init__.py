"""Layers: parameters and one call of an op."""

from regard.nn.attention import AttentionOptions, CacheUpdate, KeysValues, MultiHeadAttention
from regard.nn.attentive import AttentiveRecurrent
from regard.nn.block import BlockOptions, DecoderBlock, EncoderBlock
from regard.nn.embedding import TokenEmbedding
from regard.nn.feedforward import FeedForward
from regard.nn.from_torch import attention_state_dict, from_torch
from regard.nn.norm import Norm, Residual
from regard.nn.patches import ClassToken, PatchEmbedding
from regard.nn.projection import xavier_linear
from regard.nn.readout import Readout
from regard.nn.recurrent import RecurrentCell, Recurrent
from regard.nn.recurrent_decoder import BahdanauDecoder, LuongDecoder, RecurrentDecoder, RecurrentMemory
from regard.nn.relative import ALiBiBias, BucketBias, RelativeKeyBias, RelativeBias, ToeplitzBias
from regard.nn.stack import Decoder, Encoder
from regard.nn.state_attention import StateAttention
from regard.nn.subsample import TimeFrequencyConv, GlobalCMVN, ConvSubsampling

__all__ = [
    "ALiBiBias",
    "AttentionOptions",
    "AttentiveRecurrent",
    "BahdanauDecoder",
    "TimeFrequencyConv",
    "BlockOptions",
    "BucketBias",
    "CacheUpdate",
    "RecurrentCell",
    "ClassToken",
    "Decoder",
    "DecoderBlock",
    "RelativeKeyBias",
    "Encoder",
    "EncoderBlock",
    "FeedForward",
    "KeysValues",
    "LuongDecoder",
    "MultiHeadAttention",
    "Norm",
    "PatchEmbedding",
    "RecurrentDecoder",
    "Readout",
    "Recurrent",
    "RecurrentMemory",
    "RelativeBias",
    "Residual",
    "GlobalCMVN",
    "StateAttention",
    "ConvSubsampling",
    "ToeplitzBias",
    "TokenEmbedding",
    "attention_state_dict",
    "from_torch",
    "xavier_linear",
]
