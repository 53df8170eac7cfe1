"""Under torch.autocast a look changes no bit where the same kernel runs."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import regard as rg
from regard.ops import attend

IDS = torch.arange(12).view(2, 6)
X = torch.randn(2, 6, 16)


def llama(kind):
    from transformers import LlamaConfig, LlamaModel

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
    config = LlamaConfig(vocab_size=20, num_attention_heads=2, attn_implementation=kind, **sizes)
    return LlamaModel(config).eval()


CASES = {  # model, arguments, keywords
    "language": lambda: (rg.models.LanguageModel(rg.models.language_tiny(vocab=20)), (IDS,), {}),
    "llama sdpa": lambda: (llama("sdpa"), (IDS,), {}),
    "multihead": lambda: (
        nn.MultiheadAttention(16, 2, batch_first=True), (X, X, X), {"need_weights": False},
    ),
    "encoder": lambda: (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2), (X,), {},
    ),
}  # fmt: skip


def out_of(model, args, kwargs):
    out = model(*args, **kwargs)
    return getattr(out, "last_hidden_state", out[0] if isinstance(out, tuple) else out)


@pytest.mark.parametrize("name", CASES)
def test_outputs_under_autocast_stay_the_same_to_the_bit(name):
    model, args, kwargs = CASES[name]()
    model.eval()
    with torch.autocast("cpu", dtype=torch.bfloat16):  # with gradients: no fast path of torch's
        want = out_of(model, args, kwargs)
        with rg.look(model) as sight:
            got = out_of(model, args, kwargs)
        inside = sight.sites[0].survey()
    assert got.dtype == want.dtype
    assert torch.equal(got, want)
    site = sight.sites[0]
    assert site.q.dtype == torch.bfloat16
    # statistics are of the exact weights, wherever they are asked for
    assert torch.equal(inside.entropy, site.survey().entropy)
    exact = site.q.double() @ site.k.double().mT * site.q.shape[-1] ** -0.5
    if name[0] == "l":
        exact = exact.masked_fill(~torch.ones(6, 6, dtype=torch.bool).tril(), -torch.inf)
    assert_close(site.weights().double(), exact.softmax(-1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("make", [lambda: llama("eager"), lambda: CASES["multihead"]()[0].eval()])
def test_where_another_kernel_runs_outputs_differ_by_rounding_only(make):
    model = make()
    args = (X, X, X) if isinstance(model, nn.MultiheadAttention) else (IDS,)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        want = out_of(model, args, {})
        with rg.look(model):
            got = out_of(model, args, {})
    assert got.dtype == want.dtype
    assert_close(got, want, atol=2**-7 * float(want.detach().abs().max()), rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_attend_casts_as_torchs_own_attention_does(dtype):
    q, k, v = torch.randn(3, 1, 2, 5, 8)
    with torch.autocast("cpu", dtype=dtype):
        want = nn.functional.scaled_dot_product_attention(q, k.to(dtype), v)
        got, lse = attend(q, k.to(dtype), v)
    assert got.dtype == want.dtype == dtype
    assert torch.equal(got, want)
    assert lse.dtype == torch.float32
    q = q.double()
    with torch.autocast("cpu", dtype=dtype):
        assert attend(q, q, q)[0].dtype == torch.float64
