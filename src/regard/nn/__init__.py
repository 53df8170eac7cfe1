"""Layers: parameters around one call of an op. They match `torch.nn` numerically."""

from regard.nn.attention import CacheUpdate, KeysValues, MultiHeadAttention
from regard.nn.block import BlockOptions, DecoderBlock, EncoderBlock
from regard.nn.conv_subsampling import ConvSubsampling, GlobalCMVN, TimeFrequencyConv
from regard.nn.embedding import ClassToken, PatchEmbedding, TokenEmbedding
from regard.nn.from_torch import attention_state_dict, from_torch
from regard.nn.layers import FeedForward, Norm, Readout, Residual, xavier_linear
from regard.nn.linear_attention import LinearAttention
from regard.nn.recurrent.attentive import (
    AttentiveRecurrent,
    BahdanauDecoder,
    LuongDecoder,
    RecurrentDecoder,
    RecurrentMemory,
    StateAttention,
)
from regard.nn.recurrent.layers import Recurrent, RecurrentCell
from regard.nn.stack import (
    ALiBiBias,
    BucketBias,
    Decoder,
    Encoder,
    RelativeBias,
    RelativeKeyBias,
    ToeplitzBias,
)

__all__ = [
    "ALiBiBias", "AttentiveRecurrent", "BahdanauDecoder", "BlockOptions", "BucketBias",
    "CacheUpdate", "ClassToken", "ConvSubsampling", "Decoder", "DecoderBlock", "Encoder",
    "EncoderBlock", "FeedForward", "GlobalCMVN", "KeysValues", "LinearAttention", "LuongDecoder",
    "MultiHeadAttention", "Norm", "PatchEmbedding", "Readout", "Recurrent", "RecurrentCell",
    "RecurrentDecoder", "RecurrentMemory", "RelativeBias", "RelativeKeyBias", "Residual",
    "StateAttention", "TimeFrequencyConv", "ToeplitzBias", "TokenEmbedding",
    "attention_state_dict", "from_torch", "xavier_linear",
]  # fmt: skip
