"""Weights of transformers' models give the same numbers in ours."""

import pytest
import torch
import transformers
from parity import allowed
from torch.testing import assert_close

from regard.errors import ConfigError
from regard.models import from_transformers
from regard.ops import Padding

VOCAB = 30
ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
SIZES = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "intermediate_size": 24}


def bert(kind="BertForSequenceClassification", **more):
    config = transformers.BertConfig(max_position_embeddings=20, num_labels=3, **SIZES, **more)
    return shaken(getattr(transformers, kind)(config))


def gpt2(kind="GPT2LMHeadModel", **more):
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 20}
    config = transformers.GPT2Config(vocab_size=VOCAB, **sizes, **ENDS, **more)
    return shaken(getattr(transformers, kind)(config))


def decoder(kind, **more):
    options = SIZES | ENDS | {"num_key_value_heads": 2} | more
    config = getattr(transformers, f"{kind}Config")(**options)
    return shaken(getattr(transformers, f"{kind}ForCausalLM")(config))


def llama(**more):
    return decoder("Llama", **more)


def mistral():
    return decoder("Mistral", num_key_value_heads=1, sliding_window=3)


def t5(**more):
    config = transformers.T5Config(
        vocab_size=VOCAB,
        d_model=16,
        d_kv=5,  # not dim / heads, as in the larger checkpoints
        d_ff=24,
        num_layers=2,
        num_decoder_layers=1,
        num_heads=4,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=10,
        **more,
    )
    return shaken(transformers.T5ForConditionalGeneration(config))


def marian(**more):
    config = transformers.MarianConfig(
        vocab_size=VOCAB,
        d_model=16,
        encoder_layers=2,
        decoder_layers=1,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        max_position_embeddings=20,
        activation_function="swish",
        scale_embedding=True,
        decoder_start_token_id=0,
        forced_eos_token_id=1,
        **ENDS,
        **more,
    )
    return shaken(transformers.MarianMTModel(config))


def shaken(model):
    """Away from zeros and ones: every bias and gain counts."""
    generator = torch.Generator().manual_seed(1)
    computed = ("positions", "inv_freq", "embed_scale")
    with torch.no_grad():
        for name, x in (*model.named_parameters(), *model.named_buffers()):
            if x.is_floating_point() and not any(part in name for part in computed):
                x += 0.1 * torch.randn(x.shape, generator=generator)
    return model.eval()


def untied(model):
    """With an output layer of its own, as T5 1.1 is published."""
    model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
    return model


def converted(theirs):
    return from_transformers(theirs.state_dict(), theirs.config.to_dict())


def batch(time=9):
    tokens = torch.randint(2, VOCAB, (3, time))
    lengths = torch.tensor([time, time - 4, 1])
    return tokens, lengths, (torch.arange(time) < lengths[:, None])


def same(got, want):
    assert_close(got, want, **allowed(4, 16, size=max(1.0, float(want.detach().abs().max()))))


def same_gradients(ours, theirs, got, want):
    """Of the input embedding and of a weight inside, from the same loss."""
    weight = torch.randn_like(want)
    for mine, other in zip(
        torch.autograd.grad((got * weight).sum(), ours),
        torch.autograd.grad((want * weight).sum(), theirs),
        strict=True,
    ):
        assert_close(mine, other, atol=1e-4, rtol=1e-4)


def test_bert_classifiers_match_transformers_with_padding_and_segments():
    theirs = bert()
    ours, (tokens, lengths, real) = converted(theirs), batch()
    kinds = torch.randint(0, 2, tokens.shape)
    want = theirs(tokens, attention_mask=real.long(), token_type_ids=kinds)
    same(ours(tokens, lengths, segments=kinds), want.logits)
    inner = theirs.bert.encoder.layer[0]
    same_gradients(
        [ours.embedding.token_embeddings, ours.encoder.blocks[0].feed_forward.to_hidden.weight],
        [theirs.bert.embeddings.word_embeddings.weight, inner.intermediate.dense.weight],
        ours(tokens, lengths, segments=kinds),
        want.logits,
    )


def test_bert_without_a_head_returns_hidden_states():
    theirs = bert("BertModel")
    ours, (tokens, lengths, real) = converted(theirs), batch()
    want = theirs(tokens, attention_mask=real.long())
    same(ours.encode(tokens, lengths)[real], want.last_hidden_state[real])
    same(ours(tokens, lengths), want.pooler_output)


@pytest.mark.parametrize("make", [gpt2, llama, mistral])
def test_language_models_match_transformers_with_left_or_right_padding(make):
    theirs = make()
    ours, (tokens, lengths, real) = converted(theirs), batch()
    want = theirs(tokens, attention_mask=real.long()).logits
    same(ours(tokens, lengths)[real], want[real])

    skip, left = tokens.shape[1] - lengths, real.flip(1)
    positions = (torch.arange(tokens.shape[1]) - skip[:, None]).clamp(min=0)
    want = theirs(tokens, attention_mask=left.long(), position_ids=positions).logits
    mask = Padding(torch.full_like(lengths, tokens.shape[1]), skip)
    same(ours(tokens, mask=mask, positions=positions)[left], want[left])


def test_gpt2_gradients_match_transformers():
    theirs = gpt2()
    ours, (tokens, _, _) = converted(theirs), batch()
    same_gradients(
        [ours.embedding.token_embeddings, ours.embedding.position_embeddings],
        [theirs.transformer.wte.weight, theirs.transformer.wpe.weight],
        ours(tokens),
        theirs(tokens).logits,
    )


def test_gpt2_without_its_output_layer_is_tied():
    assert converted(gpt2("GPT2Model")).config.tied


@pytest.mark.parametrize("tied", [True, False])
def test_llama_with_an_output_of_its_own_or_tied(tied):
    theirs = llama(tie_word_embeddings=tied, rope_theta=500.0, head_dim=6)
    ours, (tokens, _, _) = converted(theirs), batch()
    assert ours.config.tied == tied
    assert ours.config.rope_theta == 500.0
    same(ours(tokens), theirs(tokens).logits)


@pytest.mark.parametrize(
    "theirs",
    [
        pytest.param(lambda: t5(), id="t5"),
        pytest.param(
            lambda: untied(t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False)),
            id="t5 1.1",
        ),
        pytest.param(lambda: marian(), id="marian"),
    ],
)
def test_translators_match_transformers_with_padding(theirs):
    theirs = theirs()
    ours, (source, lengths, real), (target, _, _) = converted(theirs), batch(), batch(6)
    want = theirs(input_ids=source, attention_mask=real.long(), decoder_input_ids=target)
    got = ours(source, target, lengths)
    same(got, want.logits)
    same(ours.encode(source, lengths)[real], want.encoder_last_hidden_state[real])


def test_t5_gradients_match_transformers():
    theirs = t5()
    ours, (source, lengths, real), (target, _, _) = converted(theirs), batch(), batch(6)
    bias = theirs.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight
    same_gradients(
        [ours.source_embedding.token_embeddings, ours.encoder.relative.table],
        [theirs.shared.weight, bias],
        ours(source, target, lengths),
        theirs(source, attention_mask=real.long(), decoder_input_ids=target).logits,
    )


def test_marian_as_saved_has_no_position_table_and_we_make_the_same():
    theirs = marian()
    state = {name: x for name, x in theirs.state_dict().items() if "embed_positions" not in name}
    ours = from_transformers(state, theirs.config.to_dict())
    same(ours.source_embedding.position_embeddings, theirs.model.encoder.embed_positions.weight)


def test_conversion_leaves_the_rng_state():
    theirs = gpt2()
    before = torch.get_rng_state()
    converted(theirs)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_family_we_do_not_know():
    with pytest.raises(ConfigError, match=r"model_type: .* got 'gpt_2'; try gpt2"):
        from_transformers({}, {"model_type": "gpt_2"})


def test_options_and_tensors_we_have_no_place_for():
    theirs = gpt2()
    state, config = theirs.state_dict(), theirs.config.to_dict()
    with pytest.raises(ConfigError, match="state: needs only tensors .* got 1 more: extra$"):
        from_transformers({**state, "extra": torch.zeros(1)}, config)
    with pytest.raises(ConfigError, match="scale_attn_by_inverse_layer_idx: needs to be off"):
        from_transformers(state, {**config, "scale_attn_by_inverse_layer_idx": True})
    with pytest.raises(ConfigError, match="activation: needs one of relu.* got 'mish'"):
        from_transformers(state, {**config, "activation_function": "mish"})
    with pytest.raises(ConfigError, match=r"fit the config, 'wte.weight' as \(31, 16\), got"):
        from_transformers(state, {**config, "vocab_size": VOCAB + 1})
    del state["transformer.wpe.weight"]
    with pytest.raises(ConfigError, match="needs 'wpe.weight', got no such tensor; nearest is"):
        from_transformers(state, config)
    rope = {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}
    theirs = llama()
    with pytest.raises(ConfigError, match="rope_type: needs one of default.* got 'longrope'"):
        from_transformers(theirs.state_dict(), {**theirs.config.to_dict(), **rope})
