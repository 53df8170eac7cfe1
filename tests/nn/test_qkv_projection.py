"""Queries, keys and values from one matrix product: same numbers, for plain layers only."""

import os
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from regard.nn import DecoderBlock, MultiHeadAttention
from regard.nn import attention as module


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"kv_heads": 2, "rope_theta": 100.0}])
def test_one_product_equals_three_with_gradients(monkeypatch, options):
    block = DecoderBlock(8, 4, **options)
    found = []
    for fuse in (False, True):
        monkeypatch.setattr(module, "_can_fuse", lambda x, *layers, fuse=fuse: fuse)
        torch.manual_seed(0)
        x, memory = (torch.randn(2, n, 8, requires_grad=True) for n in (5, 3))
        y = block(x, memory)
        block.zero_grad()
        y.square().sum().backward()
        names = {name: p.grad for name, p in block.named_parameters()}
        found.append({"y": y.detach(), "x": x.grad, "memory": memory.grad} | names)
    for name, apart in found[0].items():
        assert_close(found[1][name], apart, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


def test_a_layer_with_hooks_or_of_another_type_is_called_by_itself():
    layer = MultiHeadAttention(8, 2)
    maps = (layer.to_q, layer.to_k, layer.to_v)
    assert module._are_plain(*maps)
    for watch in (layer.to_k.register_forward_hook, layer.to_k.register_full_backward_hook):
        handle = watch(lambda *given: None)
        assert not module._are_plain(*maps)
        handle.remove()
    assert module._are_plain(*maps)

    class Other(nn.Linear):
        pass

    assert not module._are_plain(layer.to_q, Other(8, 8))
    assert not module._are_plain(layer.to_q, nn.Linear(8, 8, bias=False))


def test_only_a_training_on_a_gpu_takes_one_product():
    layer = MultiHeadAttention(8, 2)
    assert not module._can_fuse(torch.zeros(1, 3, 8), layer.to_q, layer.to_k)


CODE = """
import torch, regard as rg
from regard.ops.attend import fused
from regard.nn import attention
attention.attend = lambda q, k, v, *, mask, dropout, scale, **rest: (fused.attend_by_sdpa(
    q, k, v, mask, scale, dropout), None)                       # what a GPU takes
attention._can_fuse = lambda x, *layers: layers[0].training and attention._are_plain(*layers)
layer, graphs = rg.nn.MultiHeadAttention(8, 2), []
def keep(graph, inputs):
    return graphs.append(graph) or graph
torch.compile(layer, fullgraph=True, backend=keep)(torch.randn(2, 3, 8)).sum().backward()
print(len(graphs), sum(node.target is torch.cat for node in graphs[0].graph.nodes))
"""


@pytest.mark.slow
def test_the_compiler_sees_one_graph_with_one_product():
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", CODE], env=env, capture_output=True, text=True)
    assert done.stdout.split() == ["1", "2"], done.stderr


@pytest.mark.gpu
def test_a_training_on_a_gpu_takes_it_and_an_evaluation_does_not(monkeypatch):
    block = DecoderBlock(64, 4).cuda()
    x, memory = torch.randn(2, 9, 64, device="cuda"), torch.randn(2, 5, 64, device="cuda")
    taken = []
    for training in (True, False):
        block.train(training)
        with torch.autocast("cuda", torch.bfloat16):
            fused = block(x, memory)
            taken.append(module._can_fuse(x, block.self_attention.to_q))
            monkeypatch.setattr(module, "_can_fuse", lambda x, *layers: False)
            assert_close(fused, block(x, memory), rtol=2e-2, atol=2e-2)
            monkeypatch.undo()
    assert taken == [True, False]
