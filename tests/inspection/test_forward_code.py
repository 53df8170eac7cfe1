"""Which modules are followed while a model is looked at, and that none is missed."""

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import _get_current_function_mode_stack

import regard as rg
from regard.inspection.adapters.forward_code import called_names, may_attend

transformers = pytest.importorskip("transformers")
SIZES = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"intermediate_size": 48, "max_position_embeddings": 64, "num_key_value_heads": 2}
IDS = torch.tensor([[3, 4, 5, 6]])


def llama() -> nn.Module:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval()


class Attending(nn.Module):
    def forward(self, x):
        return F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None])[:, 0]


class Both(nn.Module):
    """A model of transformers, and code of one's own behind it."""

    def __init__(self):
        super().__init__()
        self.language, self.own = llama(), Attending()

    def forward(self, ids):
        return self.own(self.language(ids).logits)


def modes_inside(model: nn.Module) -> int:
    """The number of function modes while the first embedding runs."""
    counts = []
    embedding = next(m for m in model.modules() if isinstance(m, nn.Embedding))
    handle = embedding.register_forward_hook(
        lambda *_: counts.append(len(_get_current_function_mode_stack()))
    )
    with rg.look(model):
        model(IDS)
    handle.remove()
    return counts[0]


def test_only_the_attentions_of_llama_may_attend():
    kinds = {type(m).__name__ for m in llama().modules() if may_attend(m)}
    # before version 5 RoPE's angles are a product of matrices
    assert kinds - {"LlamaRotaryEmbedding"} == {"LlamaAttention", "ModuleList"}


def test_no_function_mode_is_active_where_all_attentions_use_the_interface():
    assert modes_inside(llama()) == 0
    assert modes_inside(Both()) == 1


def test_a_model_that_mixes_the_interface_and_own_code_is_recorded_whole():
    model = Both()
    want = model(IDS)
    with rg.look(model) as sight:
        got = model(IDS)
    attentions = [f"language.model.layers.{i}.self_attn" for i in range(2)]
    assert sight.names == [*attentions, "own"]
    torch.testing.assert_close(got, want)


def test_a_replaced_forward_is_followed():
    model = llama()
    mlp = model.model.layers[1].mlp
    assert not may_attend(mlp)
    mlp.forward = Attending().forward
    assert may_attend(mlp)
    assert called_names(mlp) is None
    with rg.look(model) as sight:
        model(IDS)
    assert "model.layers.1.mlp" in sight.names


def test_modules_that_do_not_match_are_named_and_not_recorded():
    model = llama()
    with rg.look(model, "*.1.*") as sight:
        model(IDS)
    assert sight.names == ["model.layers.1.self_attn"]
    assert sight.unmatched == ["model.layers.0.self_attn"]


def test_a_thread_that_looks_at_one_attention_stays_isolated_in_the_others():
    model, seen = llama(), {}

    def look_at_one() -> None:
        with rg.look(model, "*.1.*") as sight:
            model(IDS)
        seen["one"] = sight.names

    with rg.look(model) as sight:
        model(IDS)
        thread = threading.Thread(target=look_at_one)
        thread.start()
        thread.join()
    assert seen["one"] == ["model.layers.1.self_attn"]
    assert len(sight) == 2  # of this thread alone
