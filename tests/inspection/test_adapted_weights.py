"""Attribution through weights that are not plain matrices: quantized layers and LoRA.

The layers imitate those of bitsandbytes, torchao and peft; each is compared with a plain layer of
the same matrix.
"""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn

import regard as rg
from regard.inspection import logit_attribution, output_projection, split_score

IDS = torch.tensor([[3, 9, 4, 30, 7]])
SIZES: dict[str, Any] = {
    "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 24, "max_position_embeddings": 32, "num_key_value_heads": 2,
}  # fmt: skip


class FourBits(nn.Linear):
    """As bitsandbytes': two weights of 4 bits in each byte, in one column."""

    def __init__(self, plain: nn.Linear):
        super().__init__(plain.in_features, plain.out_features, bias=False)
        codes = (plain.weight / 0.25).round().clamp(-8, 7).add(8).to(torch.uint8).flatten()
        packed = (codes[::2] * 16 + codes[1::2])[:, None]
        self.weight = nn.Parameter(packed, requires_grad=False)

    def dequantize(self):
        codes = torch.stack([self.weight // 16, self.weight % 16], -1).flatten()
        return 0.25 * (codes.float() - 8).view(self.out_features, self.in_features)

    def forward(self, input):  # noqa: A002
        return F.linear(input, self.dequantize())


class Int8Tensor(torch.Tensor):
    """As torchao's: a tensor that F.linear takes, and no other function."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is F.linear:
            x, weight = args[:2]
            return F.linear(x, weight.as_subclass(torch.Tensor))
        if getattr(func, "__name__", "") in ("__get__", "detach", "dim", "size"):
            return super().__torch_function__(func, types, args, kwargs or {})
        raise NotImplementedError(f"{func} of Int8Tensor")


class Lora(nn.Module):
    """As peft's: the layer with a product of two small matrices; `weight` is the layer's."""

    def __init__(self, plain: nn.Linear):
        super().__init__()
        self.base_layer = plain
        self.lora_A = nn.ModuleDict({"default": nn.Linear(plain.in_features, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, plain.out_features, bias=False)})
        self.in_features, self.out_features = plain.in_features, plain.out_features

    @property
    def weight(self):
        return self.base_layer.weight

    def forward(self, x):
        return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x))


def int8(plain):
    step = plain.weight.detach().abs().amax(1, keepdim=True) / 127
    plain.weight = nn.Parameter((plain.weight / step).round() * step)
    changed = copy.deepcopy(plain)
    weight = changed.weight.detach().as_subclass(Int8Tensor)
    changed._parameters["weight"] = weight  # pyright: ignore
    return plain, changed


def four_bits(plain):
    changed = FourBits(plain)
    plain.weight = nn.Parameter(changed.dequantize())
    return plain, changed


def lora(plain):
    changed = Lora(copy.deepcopy(plain))
    with torch.no_grad():
        a, b = (m["default"].get_parameter("weight") for m in (changed.lora_A, changed.lora_B))
        plain.weight += b @ a
    return plain, changed


def pair(change):
    """A model of plain layers, and the same model of changed ones."""
    torch.manual_seed(0)
    plain = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval()
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    changed = copy.deepcopy(plain)
    for layer, other in zip(plain.model.layers, changed.model.layers, strict=True):
        for block, name in ((layer.self_attn, "o_proj"), (layer.mlp, "down_proj")):
            mirror = other.self_attn if name == "o_proj" else other.mlp
            first, second = change(getattr(block, name))
            setattr(block, name, first)
            setattr(mirror, name, second)
    with torch.no_grad():
        assert torch.allclose(plain(IDS).logits, changed(IDS).logits, atol=1e-4)
    return plain, changed


@pytest.mark.parametrize("change", [four_bits, int8, lora])
@pytest.mark.parametrize("by", ["head", "neuron", "source"])
def test_a_logit_is_split_as_that_of_plain_weights(change, by):
    plain, changed = pair(change)
    expected = logit_attribution(plain, IDS, 7, by=by).parts
    found = logit_attribution(changed, IDS, 7, by=by).parts
    assert list(found) == list(expected)
    count = {"head": 8, "neuron": 48, "source": 40}[by]
    assert sum(f" {by if by != 'source' else 'head'} " in name for name in found) == count
    values = torch.tensor(list(found.values()))
    assert torch.allclose(values, torch.tensor(list(expected.values())), atol=1e-4)


@pytest.mark.parametrize("change", [four_bits, int8, lora])
def test_the_output_projection_is_what_the_layer_computes(change):
    plain, changed = pair(change)
    found = []
    for model in (plain, changed):
        with rg.look(model) as sight:
            model(IDS)
        found.append(output_projection(model, sight.sites[1]))
    assert torch.allclose(found[0], found[1], atol=1e-5)
    split = split_score(changed, IDS, "decoder.1.self", head=0, query=3, key=1, by="head")
    assert abs(split.error) < 1e-3
