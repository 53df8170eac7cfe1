"""Rows of padding that see no key: models return something there, and `look` leaves it as it is."""

import pytest
import torch
from torch.testing import assert_close

import regard as rg

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # DeBERTa

RIGHT = (torch.arange(9) < torch.tensor([[9], [5]])).long()
PADDED = {"right": RIGHT, "left": RIGHT.flip(1)}
IDS = torch.randint(3, 50, (2, 9), generator=torch.Generator().manual_seed(1))
SIZES = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"intermediate_size": 48, "max_position_embeddings": 64, "pad_token_id": 0}
GROUPED = SIZES | {"num_key_value_heads": 2, "head_dim": 8}
EAGER = {"attn_implementation": "eager"}
MODELS = {
    "Gemma2Model": ("Gemma2Config", GROUPED | EAGER | {"sliding_window": 4}),
    "LlamaModel": ("LlamaConfig", GROUPED | EAGER),
    "DogeModel": ("DogeConfig", GROUPED),  # SDPA with a mask that is added
    "DebertaV2Model": ("DebertaV2Config", SIZES | {"relative_attention": True}),
    "CanineModel": (
        "CanineConfig",
        SIZES | {"num_hash_buckets": 32, "num_hash_functions": 4, "local_transformer_stride": 4},
    ),
}


def make(name):
    kind, options = MODELS[name]
    torch.manual_seed(0)
    options = dict(options)
    setting = {"attn_implementation": options.pop("attn_implementation", None)}
    config = getattr(transformers, kind)(**options)
    model = getattr(transformers, name)._from_config(config, **setting).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(4.0 if p.ndim > 1 and p.shape[0] != 50 else 1.0)
    return model


@torch.no_grad()
@pytest.mark.parametrize("side", PADDED)
@pytest.mark.parametrize("name", MODELS)
def test_every_row_of_the_output_stays_to_the_last_bit(name, side):
    model, given = make(name), {"input_ids": IDS, "attention_mask": PADDED[side]}
    want = model(**given)[0]
    with rg.look(model) as sight:
        got = model(**given)[0]
    assert torch.equal(got, want)
    for site in sight:
        v = site.v.repeat_interleave(site.heads // site.v.shape[1], 1)
        assert_close(site.weights() @ v, site.out, rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("name", ["Gemma2Model", "DebertaV2Model"])
def test_edits_of_weights_leave_rows_without_weights_as_they_are(name):
    model, given = make(name), {"input_ids": IDS, "attention_mask": PADDED["left"]}
    calls = []

    def record(call, proceed):
        calls.append(proceed(call))
        return calls[-1]

    with rg.look(model) as sight, rg.ops.intercept.intercepting(record):  # nothing is edited
        model(**given)
    empty = sight.sites[0].lse == -torch.inf
    assert empty.any()
    own = calls[0][0]
    assert own[empty].abs().max() > 1e-3  # the model's own
    calls.clear()
    with rg.ops.intercept.intercepting(record), rg.what_if(model, rg.edit.uniform("*")):
        model(**given)
    assert_close(calls[0][0][empty], own[empty])


def test_queries_whose_keys_an_edit_takes_away_give_zeros():
    call = rg.ops.intercept.AttentionCall
    q = torch.randn(1, 1, 3, 4)
    from regard.ops.attend.op import compute_attention
    from regard.ops.terms import make_terms

    mask = rg.ops.masks.DenseMask(torch.tensor([[0, 0, 0], [1, 0, 0], [0, 0, 0]]).bool())
    own = torch.tensor([[[[5.0] * 4, [0.0] * 4, [0.0] * 4]]])
    out, _ = compute_attention(call(q, q, q, make_terms(q, q, mask=mask), empty_out=own))
    assert_close(out[0, 0], torch.stack([own[0, 0, 0], q[0, 0, 0], torch.zeros(4)]))


@torch.no_grad()
def test_eager_attention_without_a_mask_is_recorded_as_it_ran():
    config = transformers.SplinterConfig(**SIZES, question_token_id=3)
    torch.manual_seed(0)
    model = transformers.SplinterModel._from_config(config, attn_implementation="eager").eval()
    want = model(IDS).last_hidden_state
    with rg.look(model) as sight:
        assert torch.equal(model(IDS).last_hidden_state, want)
    for site in sight:  # not causal, although no setting of the module says so
        assert_close(site.weights() @ site.v, site.out)
