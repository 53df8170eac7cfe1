import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

import regard as rg

X, Y = torch.randn(2, 6, 16), torch.randn(2, 5, 16)
PAD = torch.arange(6) >= torch.tensor([6, 4])[:, None]


class Attention(nn.Module):
    """As timm writes it: one projection for all, and torch's fused function."""

    def __init__(self, dim=16, heads=4):
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, **options):
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(*qkv, **options)
        return self.proj(out.transpose(1, 2).flatten(2))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"attn_mask": torch.ones(6, 6, dtype=torch.bool).tril()},
        {"attn_mask": torch.randn(2, 4, 6, 6), "scale": 0.3},
        {"attn_mask": torch.rand(2, 1, 6, 6) > 0.2},
    ],
    ids=["plain", "causal", "tril", "bias", "dense"],
)
def test_fused_calls_are_recorded_and_bit_identical(options):
    model = nn.Sequential(Attention())
    want = model[0](X, **options)
    with rg.look(model) as sight:
        model.forward = lambda x: model[0](x, **options)
        got = model(X)
    assert torch.equal(got, want)
    [site] = sight
    assert (site.name, site.kind, site.heads) == ("0", "self", 4)
    scores = site.q @ site.k.mT * options.get("scale", 0.5)
    mask = options.get("attn_mask", torch.ones(6, 6, dtype=torch.bool))
    mask = mask.tril() if "is_causal" in options else mask
    scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    assert_close(site.weights(), scores.softmax(-1))


def test_fewer_key_heads_and_a_batch_of_one_are_broadcast():
    class Shared(nn.Module):
        def forward(self, q, k):
            return F.scaled_dot_product_attention(q, k, k, enable_gqa=True)

    q, k, model = torch.randn(3, 4, 5, 8), torch.randn(1, 2, 7, 8), Shared()
    with rg.look(model) as sight:
        got = model(q, k)
    assert_close(got, model(q, k.expand(3, -1, -1, -1)))
    assert sight["Shared"].k.shape == (3, 2, 7, 8)


class Windows(nn.Module):
    """Attention inside windows: an axis more than (batch, head, query, feat)."""

    def __init__(self, ours: bool):
        super().__init__()
        self.ours = ours

    def forward(self, q, mask):
        if self.ours:
            return rg.attend(q, q, q, mask=mask.expand(2, 3, 4, 5, 5))[0]
        return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)


@pytest.mark.parametrize("ours", [True, False])
def test_more_leading_axes_are_folded_into_one_batch(ours):
    q, mask, model = torch.randn(2, 3, 4, 5, 8), torch.rand(1, 3, 1, 5, 5) > 0.3, Windows(ours)
    mask[..., 0] = True  # every query sees something
    want = model(q, mask)
    with rg.look(model) as sight:
        assert_close(model(q, mask), want)
    site = sight["Windows"]
    assert (site.batch, site.heads) == (6, 4)
    scores = (q @ q.mT * 8**-0.5).masked_fill(~mask, -torch.inf).flatten(0, 1)
    assert_close(site.weights(), scores.softmax(-1))


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_outputs_of_multihead_attention_are_unchanged(need_weights, average, masked):
    layer = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    options = {"need_weights": need_weights, "average_attn_weights": average}
    options |= {"key_padding_mask": PAD} if masked else {}
    want, w = layer(Y, X, X, **options)
    with rg.look(layer) as sight:
        got, seen = layer(Y, X, X, **options)
    site = sight["MultiheadAttention"]
    assert (site.kind, site.heads, site.queries, site.keys) == ("cross", 4, 5, 6)
    assert_close(got, want, atol=1e-6, rtol=1e-5)  # the map was made by other products
    if need_weights:
        assert_close(seen, w, atol=1e-6, rtol=1e-5)
        assert_close(site.weights().mean(1) if average else site.weights(), w, atol=1e-6, rtol=1e-5)
    else:
        assert seen is None
        assert torch.equal(got, want)


def test_without_a_batch_and_with_an_extra_key():
    layer = nn.MultiheadAttention(16, 4, add_zero_attn=True, add_bias_kv=True).eval()
    want, w = layer(X[0], X[0], X[0])
    with rg.look(layer) as sight:
        got, seen = layer(X[0], X[0], X[0])
    assert_close(got, want)
    assert_close(seen, w)
    assert (sight.sites[0].kind, sight.sites[0].keys) == ("self", 8)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_the_encoder_with_a_fast_path_is_recorded():
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    with torch.no_grad():
        want = model(X, src_key_padding_mask=PAD)
        with rg.look(model) as sight:
            got = model(X, src_key_padding_mask=PAD)
        after = model(X, src_key_padding_mask=PAD)
    assert torch.backends.mha.get_fastpath_enabled()
    assert torch.equal(want, after)
    assert_close(got[~PAD], want[~PAD], atol=1e-5, rtol=1e-5)  # other kernels than the fast path
    assert sight.names == ["layers.0.self_attn", "layers.1.self_attn"]
    assert str(sight.sites[0].terms.mask) == str(rg.Padding(torch.tensor([6, 4])))


def test_the_decoder_is_causal_to_itself_and_looks_across():
    layer = nn.TransformerDecoderLayer(16, 4, 32, batch_first=True)
    model = nn.TransformerDecoder(layer, 2).eval()
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    want = model(Y, X, tgt_mask=mask)
    with rg.look(model) as sight:
        got = model(Y, X, tgt_mask=mask)
    assert torch.equal(got, want)
    assert [site.kind for site in sight] == ["self", "cross"] * 2
    assert sight["layers.0.self_attn"].terms.mask == rg.Causal()
    assert sight["layers.0.multihead_attn"].keys == 6


def test_gradients_flow_as_without_looking():
    model = Attention()
    model(X).square().sum().backward()
    want = model.qkv.weight.grad.clone()
    model.zero_grad()
    with rg.look(model):
        model(X).square().sum().backward()
    assert_close(model.qkv.weight.grad, want)


def test_an_attention_that_is_not_recognised_is_named_with_the_reason():
    class OwnAttention(nn.Module):
        def forward(self, x):
            w = (x @ x.mT).exp()
            return (w / w.sum(-1, keepdim=True)) @ x

    model = nn.Sequential(Attention(), OwnAttention())
    with rg.look(model) as sight:
        model(X)
    assert sight.names == ["0"]
    assert sight.skipped == {
        "1": "OwnAttention computes something else than softmax(q kᵀ + bias) v"
    }
    assert "skipped: 1: OwnAttention" in repr(sight)


def test_torch_has_its_functions_back_after_an_error():
    layer = nn.MultiheadAttention(16, 4)
    before = F.scaled_dot_product_attention
    with pytest.raises(AssertionError), rg.look(layer):
        layer(torch.randn(2, 3, 7), torch.randn(2, 3, 7), torch.randn(2, 3, 7))
    assert F.scaled_dot_product_attention is before
    assert torch.backends.mha.get_fastpath_enabled()
