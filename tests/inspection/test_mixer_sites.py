"""Linear mixers of transformers models as sites: recorded, verified, continued, named if not."""

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from hybrids import CONFIGS, COUNTS, make_hybrid, token_ids
from torch.testing import assert_close

import regard as rg
from regard.errors import LookError, ShapeError
from regard.inspection.adapters import mixer_readers, transformers_mixers
from regard.inspection.sites.mixer_site import ConvolutionSite, MixerSite


def values(site):
    return site.mixer.x[..., None] if isinstance(site, ConvolutionSite) else site.mixer.v


def record(model, ids, **kwargs):
    with torch.no_grad(), rg.look(model) as sight:
        out = model(ids, **kwargs)
    return sight, out.logits


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_layer_is_a_site_whose_weights_rebuild_the_output_and_the_model_is_unchanged(kind):
    model, ids = make_hybrid(kind), token_ids()
    mask = torch.ones_like(ids)
    mask[1, :3] = 0  # left padding
    with torch.no_grad():
        want = model(ids, attention_mask=mask).logits
    sight, got = record(model, ids, attention_mask=mask)
    assert torch.equal(want, got)
    assert (sight.skipped, sight.coverage) == ({}, "")
    assert (len(sight.sites), len(sight.mixers)) == COUNTS[kind]
    for site in sight.mixers:
        assert sight[site.name] is site
        assert_close(site.weights() @ values(site), site.out, rtol=1e-4, atol=1e-5)
        assert not site.weights().triu(1).any()


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_generated_text_joins_into_the_map_of_the_whole_text(kind):
    model, ids = make_hybrid(kind), token_ids()
    with torch.no_grad(), rg.look(model) as sight:
        text = model.generate(ids, max_new_tokens=5, min_new_tokens=5, do_sample=False)
    whole, _ = record(model, text[:, :-1], use_cache=False)
    for name in sight.mixer_names:
        if name in sight.skipped:
            assert kind == "recurrent_gemma"
            assert "from call 1 on" in sight.skipped[name]
            continue
        last, joined = sight.calls(name)[-1], sight.join(name)
        assert (last.offset, last.queries, last.keys) == (14, 1, 15)
        assert_close(joined.weights(), whole[name].weights(), rtol=2e-4, atol=2e-4)
        assert_close(last.weights() @ values(last), last.out, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("kind", CONFIGS)
def test_half_precision_reproduces_within_its_rounding(kind):
    model, ids = make_hybrid(kind).to(torch.bfloat16), token_ids()
    with torch.no_grad():
        want = model(ids).logits
    sight, got = record(model, ids)
    assert torch.equal(want, got)
    assert not sight.skipped
    for site in sight.mixers:
        rebuilt = site.weights().float() @ values(site).float()
        assert_close(rebuilt, site.out.float(), rtol=0.05, atol=0.02 * float(site.out.abs().max()))


def test_a_look_that_begins_within_a_text_keeps_the_state_of_what_came_before():
    model, ids = make_hybrid("qwen3_next"), token_ids()
    with torch.no_grad():
        before = model(ids[:, :7], use_cache=True)
        with rg.look(model) as sight:
            model(ids[:, 7:], past_key_values=before.past_key_values)
    (site,) = sight.mixers
    assert (site.offset, site.keys) == (0, 4)
    assert site.mixer.state is not None
    assert_close(rg.ops.mixers.mix(site.mixer).out, site.out, rtol=1e-4, atol=1e-5)
    with pytest.raises(AssertionError):  # W v alone leaves out what the state holds
        assert_close(site.weights() @ site.mixer.v, site.out, rtol=1e-2, atol=1e-3)


def test_what_does_not_reproduce_is_skipped_by_name_and_reason(monkeypatch):
    read = mixer_readers.READERS["torch_chunk_gated_delta_rule"]

    def wrong(given):
        described = read(given)
        mixer: Any = described.mixer
        return replace(described, mixer=replace(mixer, q=1.01 * mixer.q))

    monkeypatch.setitem(mixer_readers.READERS, "torch_chunk_gated_delta_rule", wrong)
    model, ids = make_hybrid("qwen3_next"), token_ids()
    with torch.no_grad():
        want = model(ids).logits
    sight, got = record(model, ids)
    assert torch.equal(want, got)
    assert not sight.mixers
    assert "differs from the recorded mixer" in sight.skipped["model.layers.0.linear_attn"]
    assert "1 of 2 layers recorded" in sight.coverage


def test_packed_sequences_are_refused_by_name():
    with pytest.raises(ValueError, match="packed sequences"), torch.no_grad():  # without kernels
        make_hybrid("qwen3_next")(token_ids(batch=1), cu_seq_lens_q=torch.tensor([0, 4, 11]))
    given = {"cu_seqlens": torch.tensor([0, 4, 11])}
    found = mixer_readers.describe(mixer_readers._read_delta_rule, given)
    assert "packed sequences (cu_seqlens) are not recorded" in str(found)


def test_functions_are_the_models_own_again_after_the_last_look():
    from transformers.models.qwen3_next import modeling_qwen3_next as module

    before = module.torch_chunk_gated_delta_rule
    model = make_hybrid("qwen3_next")
    with rg.look(model):
        with rg.look(model), torch.no_grad():
            model(token_ids())
        assert module.torch_chunk_gated_delta_rule is not before
        model(token_ids())
    assert module.torch_chunk_gated_delta_rule is before
    assert not transformers_mixers._installed


def test_another_model_of_the_same_class_is_not_recorded():
    model, other = make_hybrid("qwen3_next"), make_hybrid("qwen3_next")
    with torch.no_grad(), rg.look(model) as sight:
        model(token_ids())
        other(token_ids())
    assert len(sight.mixers) == 1


def test_a_limit_of_memory_names_what_it_leaves_out():
    model = make_hybrid("qwen3_next")
    over = pytest.raises(LookError, match="linear_attn: over max_bytes=600; try at= or max_bytes=")
    with over, torch.no_grad(), rg.look(model, max_bytes=600):
        model(token_ids())
    warned = pytest.warns(UserWarning, match="2 of 2 attentions missing or incomplete")
    with warned, torch.no_grad(), rg.look(model, max_bytes=25_000) as sight:
        model.generate(token_ids(), max_new_tokens=9, min_new_tokens=9, do_sample=False)
    assert "on, over max_bytes" in sight.skipped["model.layers.0.linear_attn"]
    assert sight.join("model.layers.0.linear_attn").queries > 10


def test_a_glob_that_matches_one_layer_leaves_the_others_unmatched():
    model = make_hybrid("qwen3_next")
    with torch.no_grad(), rg.look(model, "*.linear_attn") as sight:
        model(token_ids())
    assert (sight.mixer_names, sight.unmatched) == (
        ["model.layers.0.linear_attn"], ["model.layers.1.self_attn"],
    )  # fmt: skip


def test_a_mixer_has_the_name_of_its_activations_too():
    model = make_hybrid("falcon_h1")
    with torch.no_grad(), rg.look(model, "decoder.1.mixer") as sight:
        model(token_ids())
    assert sight.mixer_names == ["model.layers.1.mamba"]
    assert sight["decoder.1.mixer"] is sight.mixers[0]


def test_tokens_label_a_text_and_its_continuation():
    class Tokenizer:
        def convert_ids_to_tokens(self, ids):
            return [f"<{i}>" for i in ids]

    model, ids = make_hybrid("qwen3_next"), token_ids()
    with torch.no_grad(), rg.look(model, tokens=Tokenizer()) as sight:
        text = model.generate(ids, max_new_tokens=3, min_new_tokens=3, do_sample=False)
    want = [[f"<{i}>" for i in row] for row in text[:, :-1].tolist()]
    assert sight.calls("model.layers.0.linear_attn")[-1].tokens == want
    with torch.no_grad(), rg.look(model, tokens=[str(i) for i in range(11)]) as sight:
        model(ids)
    assert sight.mixers[0].tokens[1][10] == "10"


@pytest.mark.usefixtures("users_view")
def test_a_mixer_is_no_attention():
    sight, _ = record(make_hybrid("qwen3_next"), token_ids())
    (site,) = sight.mixers
    with pytest.raises(LookError, match="lse: needs an attention, got model.layers.0.linear_attn"):
        _ = site.lse
    with pytest.raises(ShapeError, match="statistics: needs names of mass"):
        site.survey(statistics=["entropy"])
    with pytest.raises(ShapeError, match="reduce: needs one of sum, mean, mass, got 'max'"):
        site.window(reduce="max")  # pyright: ignore[reportArgumentType]
    assert "gated delta rule, 4 heads, 11 tokens, inputs from 3 tokens" in repr(sight)


@pytest.mark.parametrize("kind", ["qwen3_next", "lfm2", "minimax"])
def test_survey_influence_window_and_state_are_those_of_brute_force(kind):
    model, ids = make_hybrid(kind), token_ids()
    with torch.no_grad(), rg.look(model) as sight:
        model.generate(ids, max_new_tokens=3, min_new_tokens=3, do_sample=False)
    site = sight.calls(sight.mixer_names[0])[-1]  # one token after 12
    w, v = site.weights(), values(site)
    survey, t = site.survey(), torch.arange(13.0)
    assert_close(survey.mass, w.abs().sum(-1))
    assert_close(survey.reach, (w.abs() * (12 - t)).sum(-1) / w.abs().sum(-1))
    assert_close(site.window(head=1, rows=0, keys=slice(3, 9), pool=(1, 4)).shape, (2, 1, 2))
    assert_close(
        site.window(keys=slice(8, 13), pool=(1, 2), reduce="sum")[..., 1], w[..., 10:12].sum(-1)
    )
    effect = site.influence().effect_of_key
    for j in (0, 5, 12):
        if kind == "lfm2":
            expected = (w[..., j, None] * v[:, :, None, j]).norm(dim=-1).sum(-1)
        else:
            without = rg.ops.mixers.mix(site.mixer.without_writes(j)).out[:, :, -1:]
            expected = (site.out - without).norm(dim=-1).sum(-1)
        assert_close(effect[..., j], expected, rtol=1e-3, atol=1e-5)
    if kind != "lfm2":
        read = (site.state(12) * site.mixer.q[:, :, 12, :, None]).sum(-2)
        assert_close(read, site.out[:, :, 0], rtol=1e-4, atol=1e-5)
        assert site.state(-1).equal(site.state(12))
        assert ((site.decay >= 0) & (site.decay <= 1)).all()


def test_a_gradient_reaches_the_recorded_quantities():
    model = make_hybrid("qwen3_next")
    with rg.look(model, grad=True) as sight:
        loss = model(token_ids()).logits.square().mean()
    (site,) = sight.mixers
    (gradient,) = torch.autograd.grad(loss, site.mixer.v)
    assert gradient.shape == site.mixer.v.shape
    assert gradient.abs().sum() > 0


@pytest.mark.parametrize("kind", ["qwen3_next", "lfm2", "recurrent_gemma"])
def test_a_saved_sight_is_loaded_with_its_mixers(kind, tmp_path):
    model = make_hybrid(kind)
    with torch.no_grad(), rg.look(model) as sight:
        model.generate(token_ids(), max_new_tokens=3, min_new_tokens=3, do_sample=False)
    loaded = rg.load_sight(sight.save(tmp_path))
    assert repr(loaded) == repr(sight)
    for site, again in zip(sight.mixers, loaded.mixers, strict=True):
        assert_close(again.weights(), site.weights())
        assert torch.equal(again.out, site.out)


@pytest.mark.usefixtures("users_view")
def test_a_signed_map_is_drawn_in_diverging_colours(tmp_path):
    sight, _ = record(make_hybrid("qwen3_next"), token_ids())
    site = replace(sight.mixers[0], tokens=[list("abcdefghijk")] * 2)
    figure = rg.draw.map(site, 1, rows=slice(2, 9), path=tmp_path / "map.png")
    (image,) = figure.axes[0].images
    low, high = image.get_clim()
    assert low == -high < 0
    assert [x.get_text() for x in figure.axes[0].get_yticklabels()] == list("cdefghi")
    assert_close(torch.tensor(image.get_array()), site.window(1, slice(2, 9))[0])
    with pytest.raises(LookError, match="site: needs one attention, got a MixerSite"):
        rg.draw.token(site, 1)  # pyright: ignore[reportArgumentType]


def test_tables_of_heads_and_propagation_say_that_layers_are_linear(tmp_path):
    sight, _ = record(make_hybrid("qwen3_next"), token_ids())
    assert sight.heads().note == "1 linear mixer in mixer_heads()"
    page = rg.inspection.write_report(sight, tmp_path / "page.html").read_text()
    assert "1 attention, 4 heads" in page
    assert "; 1 linear mixer." in page
    assert "Linear mixers" in page
    table = sight.mixer_heads()
    site, survey = sight.mixers[0], sight.mixers[0].survey()
    assert [row["head"] for row in table.rows] == [0, 1, 2, 3]
    assert_close(table.rows[2]["reach"], float(survey.reach[:, 2].double().mean()))
    assert_close(table.rows[2]["mass"], float(site.weights()[:, 2].abs().sum(-1).mean()))
    assert len(record(make_hybrid("lfm2"), token_ids())[0].mixer_heads()) == 32
    with pytest.raises(LookError, match="got none of model.layers.0.linear_attn"):
        rg.inspection.attention_rollout(sight)


def test_warnings_are_none_for_a_complete_sight():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sight, _ = record(make_hybrid("lfm2"), token_ids())
    assert isinstance(sight.mixers[0], MixerSite)
