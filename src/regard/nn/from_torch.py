"""Conversion of torch.nn's attention, Transformer and recurrent layers."""

from collections.abc import Mapping
from typing import overload

import torch
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.nn.attention import MultiHeadAttention
from regard.nn.block import DecoderBlock, EncoderBlock
from regard.nn.layers import ACTIVATIONS
from regard.nn.recurrent.layers import CELL_WEIGHTS, CellKind, Recurrent

TorchLayer = nn.MultiheadAttention | nn.TransformerEncoderLayer | nn.TransformerDecoderLayer


@overload
def from_torch(layer: nn.RNNBase) -> Recurrent: ...
@overload
def from_torch(layer: TorchLayer) -> MultiHeadAttention | EncoderBlock | DecoderBlock: ...
def from_torch(layer: TorchLayer | nn.RNNBase) -> nn.Module:
    """Convert a torch.nn attention, Transformer or recurrent layer, which then can be inspected.

    from_torch(layer)(x) = layer(x), batch first

    >>> theirs = torch.nn.MultiheadAttention(4, 2, batch_first=True)
    >>> x = torch.randn(1, 3, 4)
    >>> torch.allclose(from_torch(theirs)(x), theirs(x, x, x)[0], atol=1e-6)
    True
    """
    if isinstance(layer, nn.RNNBase):
        ours = _recurrent(layer)
    else:
        ours = _attention(layer) if isinstance(layer, nn.MultiheadAttention) else _block(layer)
    return ours.to(next(layer.parameters())).train(layer.training)


def attention_state_dict(state: Mapping[str, Tensor], prefix: str = "") -> dict[str, Tensor]:
    """The state dict of an nn.MultiheadAttention with the names of MultiHeadAttention.

    in_proj = [W_q; W_k; W_v], split

    >>> sorted(attention_state_dict(torch.nn.MultiheadAttention(4, 2, bias=False).state_dict()))
    ['to_k.weight', 'to_out.weight', 'to_q.weight', 'to_v.weight']
    """
    if f"{prefix}bias_k" in state:
        raise ConfigError("state: needs no add_bias_kv, which is not supported, got bias_k")
    named = {}
    for kind in ("weight", "bias"):
        if (stacked := state.get(f"{prefix}in_proj_{kind}")) is not None:
            named |= {
                f"to_{x}.{kind}": part for x, part in zip("qkv", stacked.chunk(3), strict=True)
            }
        if (out := state.get(f"{prefix}out_proj.{kind}")) is not None:
            named[f"to_out.{kind}"] = out
    for x in "qkv":  # separate where keys have another width
        if (part := state.get(f"{prefix}{x}_proj_weight")) is not None:
            named[f"to_{x}.weight"] = part
    return named


def _attention(layer: nn.MultiheadAttention) -> MultiHeadAttention:
    if layer.kdim != layer.vdim or layer.add_zero_attn:
        raise ConfigError(
            "layer: needs keys and values from one source and no add_zero_attn, "
            f"got kdim={layer.kdim}, vdim={layer.vdim}, add_zero_attn={layer.add_zero_attn}"
        )
    ours = MultiHeadAttention(
        layer.embed_dim, layer.num_heads, source_dim=layer.kdim,
        qkv_bias=layer.in_proj_bias is not None, dropout=layer.dropout,
    )  # fmt: skip
    ours.load_state_dict(attention_state_dict(layer.state_dict()))
    return ours


def _block(
    layer: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer,
) -> EncoderBlock | DecoderBlock:
    kind, parts = EncoderBlock, {"self_attention": "self_attn"}
    residuals = ["self_residual", "feed_forward_residual"]
    if isinstance(layer, nn.TransformerDecoderLayer):
        kind, parts["cross_attention"] = DecoderBlock, "multihead_attn"
        residuals.insert(1, "cross_residual")
    activations = {function: name for name, function in ACTIVATIONS.items()}
    if layer.activation not in activations:
        raise ConfigError(f"activation: needs relu, gelu or silu, got {layer.activation}")
    attention = layer.self_attn
    ours = kind(
        attention.embed_dim, attention.num_heads, ffn_dim=layer.linear1.out_features,
        activation=activations[layer.activation], norm_first=layer.norm_first,
        eps=layer.norm1.eps, bias=layer.linear1.bias is not None, dropout=layer.dropout1.p,
        attention_dropout=attention.dropout, activation_dropout=layer.dropout.p,
    )  # fmt: skip
    state = layer.state_dict()
    named = {
        f"{name}.{key}": value
        for name, theirs in parts.items()
        for key, value in attention_state_dict(state, f"{theirs}.").items()
    }
    modules = {"linear1": "feed_forward.to_hidden", "linear2": "feed_forward.to_out"}
    modules |= {f"norm{i}": f"{name}.norm" for i, name in enumerate(residuals, 1)}
    for theirs, name in modules.items():
        gain = "gain" if name.endswith("norm") else "weight"
        for key, x in getattr(layer, theirs).state_dict().items():
            named[f"{name}.{gain if key == 'weight' else key}"] = x
    ours.load_state_dict(named)
    return ours


@torch.no_grad()
def _recurrent(layer: nn.RNNBase) -> Recurrent:
    kinds: dict[str, CellKind] = {"RNN_TANH": "rnn", "GRU": "gru", "LSTM": "lstm"}
    if layer.mode not in kinds or layer.proj_size:
        got = f"{layer.mode}, proj_size={layer.proj_size}"
        raise ConfigError(f"layer: needs tanh and no projection, got {got}")
    ours = Recurrent(
        layer.input_size, layer.hidden_size, kind=kinds[layer.mode], layers=layer.num_layers,
        bidirectional=layer.bidirectional, bias=layer.bias, dropout=layer.dropout,
    ).to(next(layer.parameters()))  # fmt: skip
    for cell, tensors in zip(ours.cells, layer.all_weights, strict=True):
        weights = CELL_WEIGHTS[ours.kind].from_torch(*tensors)
        for name in ("w", "u", "w_bias", "u_bias"):
            if (parameter := getattr(cell, name)) is not None:
                parameter.copy_(getattr(weights, name))
    return ours
