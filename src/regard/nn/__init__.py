"""Layers: parameters and one call of an op."""

from regard.nn.attention import AttentionOptions, Cache, KeysValues, MultiHeadAttention
from regard.nn.block import BlockOptions, DecoderBlock, EncoderBlock
from regard.nn.embedding import TokenEmbedding
from regard.nn.feedforward import FeedForward
from regard.nn.from_torch import attention_state, from_torch
from regard.nn.norm import Norm, Residual
from regard.nn.patches import ClassToken, PatchEmbedding
from regard.nn.projection import projection
from regard.nn.relative import ALiBiBias, BucketBias, DistanceKeys, RelativeBias, ToeplitzBias
from regard.nn.stack import Decoder, Encoder
from regard.nn.subsample import Standardise, Subsample

__all__ = [
    "ALiBiBias",
    "AttentionOptions",
    "BlockOptions",
    "BucketBias",
    "Cache",
    "ClassToken",
    "Decoder",
    "DecoderBlock",
    "DistanceKeys",
    "Encoder",
    "EncoderBlock",
    "FeedForward",
    "KeysValues",
    "MultiHeadAttention",
    "Norm",
    "PatchEmbedding",
    "RelativeBias",
    "Residual",
    "Standardise",
    "Subsample",
    "ToeplitzBias",
    "TokenEmbedding",
    "attention_state",
    "from_torch",
    "projection",
]
