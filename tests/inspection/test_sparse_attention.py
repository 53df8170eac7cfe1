"""Latent attention, and sparse attention over the keys that an indexer chose."""

import sys
from pathlib import Path

import pytest
import torch

import regard as rg
from regard.errors import LookError
from regard.ops.masks import ChosenKeys

transformers = pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from tiny_models import IDS, MASK, make, mappings_of  # noqa: E402

SPARSE = ("deepseek_v32", "glm_moe_dsa", "minimax_m3_vl_text")
PADDED = {"input_ids": IDS, "attention_mask": MASK, "use_cache": False}
LEFT = PADDED | {"attention_mask": MASK.flip(1)}
GIVEN = {"right": PADDED, "left": LEFT, "none": {"input_ids": IDS[:1]}}


def look(model, activations=None, **given):
    with torch.no_grad():
        want = model(**given).logits
        with rg.look(model, activations=activations) as sight:
            got = model(**given).logits
    assert torch.equal(want, got)
    return sight


@pytest.fixture(scope="module", params=SPARSE)
def model(request):
    return make(request.param, mappings_of(request.param)[0])


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_each_query_attends_to_the_chosen_keys_alone(model, given, implementation):
    model.set_attn_implementation(implementation)
    for site in look(model, **given):
        seen = (site.lse > -torch.inf)[..., None]
        v = site.v.repeat_interleave(site.heads // site.v.shape[1], 1)
        difference = (site.weights() @ v - site.out).masked_fill(~seen, 0)
        assert difference.abs().max() < 1e-4 * site.v.abs().max()
    model.set_attn_implementation("sdpa")


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
def test_left_out_is_the_mass_of_the_keys_that_were_not_chosen(model, given):
    site = next(x for x in look(model, **given) if is_sparse(x))
    masks = [mask for mask in site.terms.mask.parts if not isinstance(mask, ChosenKeys)]
    allowed = masks[0].tile(grid(site)) if masks else torch.ones(1, dtype=torch.bool)
    for mask in masks[1:]:
        allowed = allowed & mask.tile(grid(site))
    k = site.k.double().repeat_interleave(site.heads // site.k.shape[1], 1)
    scores = site.q.double() @ k.mT * site.terms.scale
    every = scores.masked_fill(~allowed, -torch.inf).softmax(-1).nan_to_num(0)
    chosen = next(mask for mask in site.terms.mask.parts if isinstance(mask, ChosenKeys))
    expected = every.masked_fill(chosen.allowed, 0).sum(-1)
    torch.testing.assert_close(site.left_out().double(), expected, atol=1e-5, rtol=0)
    assert expected.max() > 0.01
    assert expected[0, :, :3].max() < 1e-9  # no more keys than are chosen


def is_sparse(site):
    parts = site.terms.mask.parts if site.terms.mask else []
    return any(isinstance(mask, ChosenKeys) for mask in parts)


def grid(site):
    from regard.ops.grid import Grid

    sizes = range(site.queries), range(site.keys), site.terms.offset
    return Grid((site.batch, site.heads), *sizes, site.q.device)


@pytest.fixture(scope="module")
def glm5_next():
    return make("glm5_next", mappings_of("glm5_next")[0])


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_layer_that_makes_its_mask_for_sdpa_keeps_its_rows_of_padding(
    glm5_next, given, implementation
):
    glm5_next.set_attn_implementation(implementation)
    assert look(glm5_next, **given).sites


def test_layers_may_differ_in_their_number_of_heads():
    assert any(is_sparse(site) for site in look(make("dots3_note_text"), input_ids=IDS[:1]))


def test_steps_with_a_cache_choose_from_all_keys():
    model = make("deepseek_v32")
    with torch.no_grad(), rg.look(model) as sight:
        model.generate(IDS[:1], max_new_tokens=3, do_sample=False, eos_token_id=99)
    site = sight.sites[-1]
    assert site.queries == 1
    assert site.keys == 14
    assert int((site.weights() > 0).sum(-1).max()) == model.config.index_topk
    assert 0 <= float(site.left_out().min()) <= float(site.left_out().max()) < 1


def test_an_edit_of_a_sparse_attention_keeps_the_choice():
    model = make("deepseek_v32")
    drop = rg.edit.drop_key("*", 0)
    with torch.no_grad(), rg.look(model) as sight, rg.what_if(model, drop):
        model(IDS[:1])
    weights = sight.sites[0].weights()[0, :, 5:]
    assert float(weights[..., 0].max()) == 0
    assert int((weights > 0).sum(-1).max()) <= model.config.index_topk


def test_latents_are_named_activations():
    model = make("deepseek_v3")
    sight = look(model, "*.self.latent_*", input_ids=IDS[:1])
    attention = model.model.layers[1].self_attn
    latent, site = sight.activations["decoder.1.self.latent_kv"], sight.sites[1]
    assert latent.shape == (1, 12, 16)
    expanded = attention.kv_b_proj(latent).view(1, 12, 4, 16).transpose(1, 2)
    torch.testing.assert_close(expanded[..., 8:].detach(), site.v)
    zero = rg.edit.zero_activation("decoder.1.self.latent_kv")
    with torch.no_grad(), rg.what_if(model, zero), rg.look(model) as edited:
        model(IDS[:1])
    assert not edited.sites[1].v.any()
    assert "decoder.0.self.latent_q" in sight.activations


def test_without_padding_latent_attention_is_causal():
    for site in look(make("deepseek_v3"), input_ids=IDS[:1]):
        assert site.terms.mask == rg.Causal()
        assert not site.weights().triu(1).any()


def test_a_site_without_an_indexer_leaves_nothing_out():
    with pytest.raises(LookError, match="needs keys chosen by an indexer, got none in attention"):
        rg.make_site(*torch.zeros(2, 3, 4)).left_out()


def test_an_attention_with_a_term_of_its_own_is_named():
    model = make("inkling2_text")
    with torch.no_grad(), rg.look(model) as sight:
        model(IDS[:1])
    assert any("has sinks, which no site can have" in why for why in sight.skipped.values())


def test_rows_of_padding_beside_a_bias_stay_as_they_are():
    look(make("inkling_text"), **PADDED)  # compares to the bit
