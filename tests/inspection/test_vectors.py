"""Hidden states match those that a model returns itself, at every depth."""

import pytest
import torch
from torch.testing import assert_close

import regard as rg
from regard import models
from regard.errors import LookError, ShapeError

TOKENS = torch.tensor([[7, 1, 2], [3, 7, 4]])


def classifier():
    return models.Classifier(models.classifier_tiny(vocab=10, classes=2)).eval()


def test_neighbours_by_hand():
    among = torch.tensor([[[0.0, 1.0], [1.0, 0.0]], [[-1.0, 0.0], [3.0, 4.0]]])
    found = rg.inspection.nearest_neighbours(torch.tensor([1.0, 0.0]), among, count=4)
    assert found == [(1, 1.0), (3, 0.6), (0, 0.0), (2, -1.0)]


def test_depths_are_the_embedding_and_the_residual_stream_after_each_block():
    model = classifier()
    stream = rg.inspection.all_hidden_states(model, TOKENS)
    assert_close(stream[0], model.embedding(TOKENS))
    for before, after, block in zip(stream[:-1], stream[1:], model.encoder.blocks, strict=True):
        assert_close(after, block(before))
    assert_close(
        model.encoder.norm(rg.inspection.hidden_states(model, TOKENS)), model.encode(TOKENS)
    )


def test_a_translator_has_two_stacks_to_choose_from():
    model = models.Translator(models.translator_tiny(vocab=10)).eval()
    assert rg.inspection.hidden_states(model, (TOKENS, TOKENS[:, :2])).shape == (2, 3, 64)
    assert rg.inspection.hidden_states(model, (TOKENS, TOKENS[:, :2]), stack="decoder").shape == (
        2,
        2,
        64,
    )


@pytest.mark.parametrize("kind", ["bert", "llama", "t5"])
def test_transformers_models_give_their_own_hidden_states(kind):
    from transformers import AutoModel, BertConfig, LlamaConfig, T5Config

    sizes = {"vocab_size": 10, "num_hidden_layers": 3, "num_attention_heads": 2}
    config = {
        "bert": BertConfig(**sizes, hidden_size=8, intermediate_size=8),
        "llama": LlamaConfig(**sizes, hidden_size=8, intermediate_size=8),
        "t5": T5Config(vocab_size=10, d_model=8, d_kv=4, d_ff=8, num_layers=3, num_heads=2),
    }[kind]
    model, inputs = AutoModel.from_config(config).eval(), {"input_ids": TOKENS}
    if kind == "t5":
        inputs["decoder_input_ids"] = TOKENS
    with torch.no_grad():
        theirs = model(**inputs, output_hidden_states=True)
    theirs = theirs.encoder_hidden_states if kind == "t5" else theirs.hidden_states
    for depth in range(3):  # the last of theirs is normed
        assert_close(rg.inspection.hidden_states(model, inputs, depth), theirs[depth])


def test_hidden_states_depend_on_context_and_embeddings_do_not():
    model = classifier()
    same = rg.inspection.compare_contexts(model, TOKENS, (0, 0), (0, 0))
    assert same.between == pytest.approx([1.0] * 3)
    assert same.first[0] == pytest.approx(1.0)
    elsewhere = rg.inspection.compare_contexts(model, TOKENS[:1], (0, 0), (0, 1), other=TOKENS[1:])
    assert elsewhere.between == pytest.approx(
        rg.inspection.compare_contexts(model, TOKENS, (0, 0), (1, 1)).between
    )
    other = rg.inspection.compare_contexts(model, torch.tensor([[7, 1], [7, 2]]), (0, 0), (1, 0))
    assert other.between[0] == pytest.approx(1.0)
    assert other.between[1] < 0.99999
    assert other.first[2] < other.first[1] < 1


def test_no_graph_is_kept_and_no_hook_stays():
    model = classifier()
    assert not rg.inspection.hidden_states(model, TOKENS).requires_grad
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@pytest.mark.usefixtures("users_view")
def test_errors_suggest_a_fix():
    model = classifier()
    with pytest.raises(ShapeError, match="depth: needs 0 to 2, or -1 for the last, got 3"):
        rg.inspection.hidden_states(model, TOKENS, depth=3)
    with pytest.raises(LookError, match="stack: needs one of encoder.blocks in Classifier"):
        rg.inspection.hidden_states(model, TOKENS, stack="decoder")
    with pytest.raises(LookError, match="no stack of blocks"):
        rg.inspection.hidden_states(torch.nn.Linear(2, 2), torch.zeros(1, 2))
    with pytest.raises(LookError, match=r"over \(batch, time, dim\), got \(1, 16, 8, 8\)"):
        rg.inspection.hidden_states(
            models.ResNet(models.ResNetConfig(classes=2)).eval(), torch.zeros(1, 1, 8, 8)
        )
    with pytest.raises(ShapeError, match=r"second: needs .* below \(2, 3\), got \(2, 0\)"):
        rg.inspection.compare_contexts(model, TOKENS, (0, 0), (2, 0))
    with pytest.raises(ShapeError, match="labels: needs one per vector, 2, got 1"):
        rg.inspection.nearest_neighbours(torch.ones(2), torch.ones(2, 2), ["a"])
