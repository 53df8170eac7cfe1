"""The same edits and attributions on transformers models, at the same interception point."""

import pytest
import torch
from torch.testing import assert_close
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

import regard as rg

TOKENS = torch.tensor([[1, 2, 3, 4, 5, 6], [6, 7, 8, 9, 1, 2]])
SMALL = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


@pytest.fixture
def llama():
    config = LlamaConfig(**SMALL, intermediate_size=64, num_key_value_heads=2)
    return LlamaForCausalLM(config).eval()


@pytest.fixture
def gpt2():
    return GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4)).eval()


@pytest.fixture
def bert():
    config = BertConfig(**SMALL, intermediate_size=64, num_labels=3)
    return BertForSequenceClassification(config).eval()


def bart():
    config = BartConfig(
        vocab_size=50,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
    )
    return BartForConditionalGeneration(config).eval()


def t5():
    config = T5Config(vocab_size=50, d_model=32, d_kv=8, num_heads=4, num_layers=2, d_ff=64)
    return T5ForConditionalGeneration(config).eval()


def test_dropping_a_head_equals_zeroing_its_output_weights(llama):
    change = rg.inspection.compare_edits(llama, TOKENS, rg.edit.drop_head("*.layers.1.*", 2))
    with torch.no_grad():
        llama.model.layers[1].self_attn.o_proj.weight[:, 16:24] = 0
        assert_close(change.after, llama(TOKENS).logits, rtol=1e-4, atol=1e-5)
    assert change.kl.max() > 0


def test_dropping_a_key_equals_masking_the_token(bert):
    mask = torch.ones_like(TOKENS)
    mask[:, 4] = 0
    inputs = {"input_ids": TOKENS, "attention_mask": torch.ones_like(TOKENS)}
    change = rg.inspection.compare_edits(
        bert, inputs, rg.edit.drop_key("*", 4), labels=torch.tensor([0, 2])
    )
    with torch.no_grad():
        want = bert(input_ids=TOKENS, attention_mask=mask).logits
    assert_close(change.after, want, rtol=1e-4, atol=1e-5)


def test_the_model_is_restored(gpt2):
    with torch.no_grad():
        before = gpt2(TOKENS).logits
        rg.inspection.compare_edits(gpt2, {"input_ids": TOKENS}, rg.edit.hardmax("*"))
        assert_close(gpt2(TOKENS).logits, before, rtol=0, atol=0)


def test_an_edit_applies_during_cached_generation(llama):
    """Token by token with a cache is the whole text at once, edits included."""
    edits = (
        rg.edit.drop_key("*", 1),
        rg.edit.jitter_key("*", 0.3, seed=4),
        rg.edit.scale_scores("*", 2.0),
    )
    with torch.no_grad(), rg.what_if(llama, *edits):
        text = llama.generate(TOKENS[:1], max_new_tokens=6, do_sample=False, pad_token_id=0)
        logits = llama(text).logits
    assert text.shape == (1, 12)
    assert_close(text[0, 6:], logits[0, 5:-1].argmax(-1))


def test_an_outer_look_records_the_edited_map(gpt2):
    with torch.no_grad(), rg.look(gpt2) as sight, rg.what_if(gpt2, rg.edit.drop_key("*.h.0.*", 2)):
        gpt2(TOKENS)
    first, second = sight
    assert (first.weights()[..., 2] == 0).all()
    assert (second.weights()[..., 3:, 2] > 0).all()


def test_importance_is_the_same_as_for_our_model_with_these_weights(gpt2):
    ours = rg.models.from_transformers(gpt2.state_dict(), gpt2.config.to_dict()).eval()
    theirs = rg.inspection.head_importance(
        gpt2, lambda m: m(TOKENS).logits[..., 7].sum()
    ).first_order
    own = rg.inspection.head_importance(ours, lambda m: m(TOKENS)[..., 7].sum()).first_order
    for a, b in zip(theirs.values(), own.values(), strict=True):
        assert_close(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("make", [bart, t5])
def test_attributions_reach_the_source_of_an_encoder_decoder(make):
    model = make()
    inputs = {"input_ids": TOKENS, "decoder_input_ids": TOKENS[:, :3]}
    with torch.no_grad(), rg.look(model) as sight:
        model(**inputs)
    rolled = rg.inspection.attention_rollout(sight, -1)
    assert rolled.own.shape == (2, 1, 3)
    assert rolled.source.shape == (2, 1, 6)
    total = rolled.own.sum(-1) + rolled.source.sum(-1)
    assert_close(total, torch.ones(2, 1), rtol=1e-4, atol=0)
    found = rg.inspection.relevance(model, lambda m: m(**inputs).logits[:, -1, 3].sum(), -1)
    assert found.source.max() > 0


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
def test_the_output_map_is_found_by_name(name, request):
    model = request.getfixturevalue(name)
    part = {"llama": "o_proj", "gpt2": "attn.c_proj", "bert": "attention.output.dense"}[name]
    caught = []
    modules = [m for path, m in model.named_modules() if path.endswith(part)]
    for module in modules:
        module.register_forward_hook(lambda module, args, out: caught.append(out))
    with torch.no_grad(), rg.look(model) as sight:
        model(TOKENS)
    for site, module, out in zip(sight, modules, caught, strict=True):
        bias = 0 if module.bias is None else module.bias
        mixed = torch.einsum(
            "bhiv,hvd->bid", site.out, rg.inspection.output_projection(model, site)
        )
        assert_close(mixed, out - bias, rtol=1e-4, atol=1e-5)


def test_weighted_value_norms_of_summed_heads_match_the_definition(bert):
    with torch.no_grad(), rg.look(bert) as sight:
        bert(TOKENS)
    site = sight.sites[0]
    w_out = rg.inspection.output_projection(bert, site)
    given = torch.einsum("bhjv,hvd->bhjd", site.v, w_out)
    want = (site.weights()[..., None] * given[:, :, None]).sum(1).norm(dim=-1)
    got = rg.inspection.weighted_value_norms(site, w_out, heads="together")
    assert_close(got, want.to(got), rtol=1e-3, atol=1e-5)
