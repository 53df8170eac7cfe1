"""Logit lens, direct logit attribution, split scores and composition, against brute force."""

import math
from copy import deepcopy

import pytest
import torch
import transformers

import regard as rg
from regard.errors import LookError
from regard.inspection import (
    LogitLens,
    composition_scores,
    logit_attribution,
    logit_lens,
    record_stream,
    split_score,
)
from regard.inspection.attribution.logits import find_unembedding

SIZES = {
    "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 24, "max_position_embeddings": 32,
}  # fmt: skip
IDS = torch.tensor([[3, 9, 4, 30, 7], [8, 8, 2, 11, 5]])
MODELS = {
    "LlamaForCausalLM": {"num_key_value_heads": 2},
    "Gemma2ForCausalLM": {"head_dim": 4, "num_key_value_heads": 2},  # norms after, softcaps
    "GraniteForCausalLM": {"residual_multiplier": 0.22, "logits_scaling": 3.0},
    "Qwen3ForCausalLM": {"head_dim": 4, "num_key_value_heads": 2},  # norms of q and k
    "GPTNeoXForCausalLM": {},  # attention and MLP in parallel, layer norms with bias
}


def make(name: str):
    torch.manual_seed(0)
    config = getattr(transformers, f"{name.split('For')[0]}Config")(**SIZES | MODELS.get(name, {}))
    model = getattr(transformers, name)(config).eval()
    with torch.no_grad():  # gains and biases that matter
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def own():
    torch.manual_seed(0)
    return rg.models.LanguageModel(rg.models.language_small(vocab=40, layers=2, dim=32)).eval()


@pytest.mark.parametrize("name", [*MODELS, "own"])
def test_every_split_of_a_logit_sums_to_it(name):
    model = own() if name == "own" else make(name)
    with torch.no_grad():
        out = model(IDS)
    logits = out if name == "own" else out.logits
    heads = {}
    for by in ("part", "neuron", "head", "source"):
        found = logit_attribution(model, IDS, 7, against=9, position=3, batch=1, by=by)
        if name != "Gemma2ForCausalLM":  # whose logits are bounded afterwards
            assert found.logit == pytest.approx(float(logits[1, 3, 7] - logits[1, 3, 9]), abs=1e-5)
        assert abs(found.error) < 1e-5
        heads |= found.parts if by == "head" else {}
    assert len(found.parts) == 1 + 2 * (4 * 5 + 1 + 1)  # embedding; 4 heads × 5 keys, bias, MLP
    for head in [part for part in heads if " head " in part]:
        parts = [x for part, x in found.parts.items() if part.startswith(f"{head} from ")]
        assert sum(parts) == pytest.approx(heads[head], abs=1e-5)


def test_the_divergence_of_a_lens_is_that_of_the_final_prediction_from_the_others():
    half, quarter = torch.tensor([0.5, 0.5]).log(), torch.tensor([0.25, 0.75]).log()
    lens = LogitLens(torch.stack([quarter, half])[:, None, None])
    assert lens.kl().flatten().tolist() == pytest.approx([0.5 * math.log(2 * 2 / 3), 0.0])
    assert lens.rank(0).flatten().tolist() == [1.0, 0.0]  # of equals, none is before


def test_a_table_shows_tokens_that_look_like_markup():
    tokens = ["[/INST]", "[b]", "[red]"]
    lens = LogitLens(torch.eye(3)[:2].view(2, 1, 1, 3), id_to_token=tokens.__getitem__)
    assert "block 0    '[b]' 0.576  '[/INST]' 0.212  '[red]' 0.212" in repr(lens)


@torch.no_grad()
def test_direct_attribution_is_the_effect_of_removing_a_part_with_the_norm_held_fixed():
    model = make("LlamaForCausalLM")
    found = logit_attribution(model, IDS[:1], 7, by="head")
    with torch.no_grad(), rg.look(model, activations="decoder.*") as sight:
        model(IDS[:1])
    x = sight.activations["decoder.1.residual_out"][0, -1]
    w_o = model.model.layers[1].self_attn.o_proj.weight[:, 8:12]
    part = w_o @ sight.activations["decoder.1.self.heads"][0, -1, 2]
    norm = model.model.norm
    scale = (x.square().mean() + norm.variance_epsilon).rsqrt()
    expected = float(model.lm_head.weight[7] @ (part * scale * norm.weight))
    assert found.parts["decoder.1.self head 2"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "BertForMaskedLM"])
def test_lens_of_a_depth_is_the_model_without_its_later_blocks(name):
    model = make(name)
    lens = logit_lens(model, {"input_ids": IDS})
    stack = "decoder" if "Causal" in name else "encoder"
    edits = [
        rg.edit.zero_activation(f"{stack}.1.self.out"),
        rg.edit.zero_activation(f"{stack}.1.mlp.out"),
    ]
    with torch.no_grad():
        torch.testing.assert_close(lens.logits[-1], model(IDS).logits)
        if stack == "decoder":  # a pre-norm block without its parts is the identity
            with rg.what_if(model, *edits):
                torch.testing.assert_close(lens.logits[1], model(IDS).logits)
    assert lens.kl()[-1].abs().max() < 1e-5 < lens.kl()[0].min()
    assert int(lens.rank(lens.logits[-1, 0, -1].argmax().item())[-1, 0, -1]) == 0


def one_gain(norm):
    norm.gain[5] += 0.5


def other_eps(norm):
    norm.eps = 0.1


def centred(norm):
    norm.kind = "layer"


@pytest.mark.parametrize("change", [one_gain, other_eps, centred])
@pytest.mark.parametrize("length", [3, 300])  # of 300 positions 60 are compared
def test_a_wrong_final_norm_is_noticed_at_the_positions_that_are_compared(change, length):
    model = own()
    with torch.no_grad():
        model.decoder.norm.gain += 0.3 * torch.randn(32)
    stream = record_stream(model, torch.randint(40, (2, length)))
    head = find_unembedding(stream)
    torch.testing.assert_close(head.logits(stream.state(2)), stream.logits)
    point = stream.points["decoder.final_norm"]
    wrong = deepcopy(point.module)
    with torch.no_grad():
        change(wrong)
    stream.points[point.name] = point._replace(module=wrong)
    with pytest.raises(LookError, match="computes something else"):
        find_unembedding(stream)


@pytest.mark.parametrize(
    "name", ["LlamaForCausalLM", "Gemma2ForCausalLM", "Qwen3ForCausalLM", "own"]
)
@pytest.mark.parametrize("by", ["part", "head"])
def test_split_of_a_score_sums_to_it(name, by):
    model = own() if name == "own" else make(name)
    where = {"head": 3, "query": 4, "key": 1, "batch": 1}
    split = split_score(model, IDS, "decoder.1.self", by=by, **where)
    with torch.no_grad(), rg.look(model) as sight:
        model(IDS)
    breakdown = sight.sites[1].breakdown(**where)
    assert split.score == pytest.approx(breakdown.scale * breakdown.dot, abs=1e-5)
    assert abs(split.error) < 1e-5 * max(1, split.pairs.abs().max())
    assert len(split.names) == (4 if by == "part" else 8)
    assert sum(split.by_query.values()) == pytest.approx(split.score, abs=1e-4)


@torch.no_grad()
def test_composition_is_the_norm_of_the_product_of_weights():
    model = make("LlamaForCausalLM")
    found = composition_scores(model, "query")
    a, b = model.model.layers
    gain_a, gain_b = (x.input_layernorm.weight[:, None] for x in (a, b))
    v = gain_a * a.self_attn.v_proj.weight.T[:, 4:8]  # key and value head 1, of heads 2 and 3
    o = a.self_attn.o_proj.weight.T[8:12]
    q = gain_b * b.self_attn.q_proj.weight.T[:, :4]
    k = gain_b * b.self_attn.k_proj.weight.T[:, :4]
    expected = (v @ o @ q @ k.T).norm() / ((v @ o).norm() * (q @ k.T).norm())
    score = found.scores[
        found.heads.index(("decoder.0.self", 2)), found.heads.index(("decoder.1.self", 0))
    ]
    assert float(score) == pytest.approx(float(expected), rel=1e-4)
    assert not found.scores[4:].any()
    assert not found.scores[:, :4].any()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: logit_attribution(m, IDS, 99), "token: needs"),
        (lambda m: logit_attribution(m, IDS, 1, position=9), "position: needs"),
        (lambda m: split_score(m, IDS, "decoder.9.self", head=0, query=1, key=0), "at: needs"),
        (lambda m: split_score(m, IDS, "encoder.1.self", head=0, query=1, key=0), "stack: needs"),
        (lambda m: logit_lens(m, IDS, stack="encoder"), "stack: needs one of decoder"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(rg.errors.RegardError, match=message):
        call(own())


def test_post_norm_models_are_refused_by_name():
    with pytest.raises(LookError, match="got a BertForMaskedLM whose head computes"):
        logit_attribution(make("BertForMaskedLM"), {"input_ids": IDS}, 7)
