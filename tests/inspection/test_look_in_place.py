"""What was recorded stays as it was, whatever the model or its caller writes to later."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

import regard as rg
from regard.inspection.adapters.snapshot import memory_address, snapshot

Q, K, V = torch.randn(3, 2, 4, 6, 8, generator=torch.Generator().manual_seed(3))


class Fused(nn.Module):
    def __init__(self, write):
        super().__init__()
        self.write = write

    def forward(self, q, k, v, mask=None):
        out = F.scaled_dot_product_attention(q, k, v, mask)
        self.write(q, k, v, out)
        return out


class Written(Fused):
    def forward(self, q, k, v, mask=None):
        out = (q @ k.mT * 8**-0.5).softmax(-1) @ v
        self.write(q, k, v, out)
        return out


WRITES = {
    "scales the output": lambda q, k, v, out: out.mul_(3),
    "adds to a part of the output": lambda q, k, v, out: out[:, 1].add_(7.0),
    "scales values": lambda q, k, v, out: v.mul_(2),
    "clears keys through a view": lambda q, k, v, out: k.view(-1).zero_(),
    "clears queries through data": lambda q, k, v, out: q.data.zero_(),
    "writes to an array": lambda q, k, v, out: v.numpy().fill(5),
}


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("kind", [Fused, Written])
@pytest.mark.parametrize("write", WRITES)
def test_writes_of_the_model_do_not_reach_the_site(kind, write, inference):
    model = kind(WRITES[write])
    with torch.inference_mode(inference):
        want = model(Q.clone(), K.clone(), V.clone())
        with rg.look(model) as sight:
            assert torch.equal(model(Q.clone(), K.clone(), V.clone()), want)
        (site,) = sight
        for name, x in (("q", Q), ("k", K), ("v", V)):
            assert torch.equal(getattr(site, name), x), name
        assert_close(site.out, F.scaled_dot_product_attention(Q, K, V))


def test_values_that_one_tensor_holds_are_not_copied_unless_it_is_written_to():
    model = Fused(lambda *_: None)
    q, k, v = Q.clone(), K.clone(), V.clone()
    with rg.look(model) as sight:
        out = model(q, k, v)
    site = sight.sites[0]
    pairs = [(site.q, q), (site.k, k), (site.v, v), (site.out, out)]
    assert all(memory_address(a) == memory_address(b) for a, b in pairs)
    k.zero_()
    assert [memory_address(a) == memory_address(b) for a, b in pairs] == [True, False, True, True]


def test_masks_and_biases_are_recorded_as_they_were():
    bias = torch.randn(6, 6, generator=torch.Generator().manual_seed(4))
    want = (Q @ K.mT * 8**-0.5 + bias).softmax(-1)
    with rg.look(model := Fused(lambda *_: None)) as sight:
        model(Q, K, V, bias)
        bias.zero_()
    assert_close(sight.sites[0].weights(), want)


def test_a_weight_of_the_model_stays_where_it_is():
    class Latents(nn.Module):
        def __init__(self):
            super().__init__()
            self.latents = nn.Parameter(Q.clone())

        def forward(self, x):
            return F.scaled_dot_product_attention(self.latents, x, x)

    model = Latents()
    address = model.latents.data_ptr()  # a captured graph or an optimizer may hold it
    with torch.no_grad(), rg.look(model) as sight:
        model(K)
        model.latents.mul_(2)
    assert model.latents.data_ptr() == address
    assert torch.equal(sight.sites[0].q, Q)


@pytest.mark.parametrize("inference", [False, True])
def test_queries_that_change_between_scores_and_output_end_the_trace(inference):
    class Attention(nn.Module):
        def forward(self, q, k, v):
            w = (q @ k.mT).softmax(-1)
            k.view(-1).zero_()
            return w @ v

    model = nn.ModuleDict({"a": Attention(), "b": Fused(lambda *_: None)})
    with torch.inference_mode(inference), rg.look(model) as sight:
        model.forward = lambda: [model[n](Q.clone(), K.clone(), V.clone()) for n in ("a", "b")]
        model()
    assert sight.names == ["b"]
    assert sight.skipped["a"].startswith("Attention computes something else")


@pytest.mark.parametrize("inference", [False, True])
def test_weights_written_through_a_view_are_not_recorded(inference):
    class Attention(nn.Module):
        def forward(self, q, k, v):
            w = (q @ k.mT).softmax(-1)
            w.view(-1).mul_(0.5)
            return w @ v

    model = nn.ModuleDict({"a": Attention(), "b": Fused(lambda *_: None)})
    with torch.inference_mode(inference), rg.look(model) as sight:
        model.forward = lambda: [model[n](Q.clone(), K.clone(), V.clone()) for n in ("a", "b")]
        model()
    assert sight.names == ["b"]


def test_with_a_graph_the_tensors_are_the_model_s_and_changed_ones_are_named():
    model = nn.ModuleDict({"a": Fused(lambda *x: x[-1].mul_(3)), "b": Fused(lambda *_: None)})
    q = Q.clone().requires_grad_()
    with rg.look(model, grad=True) as sight:
        model.forward = lambda: model["b"](q, model["a"](q, K, V), V)
        out = model()
    assert sight.names == ["b"]
    assert "changed in place after it was recorded" in sight.skipped["a"]
    (found,) = torch.autograd.grad(out.sum(), sight["b"].out)
    assert_close(found, torch.ones_like(out))


class Block(nn.Module):
    """Writes into its input and into the output of its feed-forward layer."""

    def __init__(self):
        super().__init__()
        self.attention = rg.nn.MultiHeadAttention(8, 2)
        self.mlp = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))

    def forward(self, x):
        a, m = self.attention(x), self.mlp(x)
        m.mul_(0.5)
        torch.add(m, a, out=m) if not torch.is_grad_enabled() else m.add_(a)
        return m


def test_activations_are_recorded_as_they_were():
    torch.manual_seed(0)
    model = nn.Module()
    model.blocks = nn.ModuleList([Block(), Block()])
    model.forward = lambda x: model.blocks[1](model.blocks[0](x))
    x = torch.randn(1, 3, 8)
    with torch.no_grad(), rg.look(model, "", activations="*") as sight:
        model(x)
    block = model.blocks[0]
    want = block.mlp(x)
    name = next(n for n in sight.activations if n.endswith("0.mlp.out"))
    assert torch.equal(sight.activations[name], want)
    found = rg.inspection.activation_gradients(model, lambda m: m(x).sum(), name)
    assert_close(found.activations[name], want)


def test_a_snapshot_of_memory_that_torch_does_not_own_is_a_copy():
    array = V.clone().numpy()
    x = torch.from_numpy(array)
    y = snapshot(x)
    array.fill(0)
    assert torch.equal(y, V)
