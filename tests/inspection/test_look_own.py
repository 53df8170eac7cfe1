import gc
import weakref

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import regard as rg
from regard import models
from regard.errors import LookError, ShapeError
from regard.ops.intercept import intercepting

IDS = torch.arange(12).view(2, 6) % 10
LENGTHS = torch.tensor([6, 4])


def translator(**changes):
    return models.Translator(models.translator_tiny(vocab=10, **changes))


def recurrent(attention):
    return models.RecurrentTranslator(models.recurrent_tiny(vocab=10, attention=attention))


MODELS = {
    "translator": (lambda: translator(), (IDS, IDS[:, :5], LENGTHS)),
    "grouped": (lambda: translator(kv_heads=2, softcap=2.0, sinks=True), (IDS, IDS[:, :5])),
    "language": (lambda: models.LanguageModel(models.language_tiny(vocab=10)), (IDS,)),
    "classifier": (
        lambda: models.Classifier(models.classifier_tiny(vocab=10, classes=3)),
        (IDS, LENGTHS),
    ),
    "vision": (
        lambda: models.VisionTransformer(models.vision_tiny(classes=3)),
        (torch.randn(1, 1, 28, 28),),
    ),
    "recogniser": (
        lambda: models.Recogniser(models.recogniser_tiny(vocab=5)),
        (torch.randn(1, 40, 40),),
    ),
    "bahdanau": (lambda: recurrent("bahdanau"), (IDS, IDS[:, :5], LENGTHS)),
    "luong": (lambda: recurrent("luong"), (IDS, IDS[:, :5])),
    "hybrid": (lambda: recurrent("hybrid"), (IDS, IDS[:, :5])),
}
RECURRENT = {
    "bahdanau": {"encoder", "decoder"},
    "luong": {"encoder", "decoder.core"},
    "hybrid": {"encoder", "decoder.core"},
}


@pytest.mark.parametrize("name", MODELS)
def test_look_is_bit_identical_and_every_weight_can_be_recomputed(name):
    make, inputs = MODELS[name]
    model = make().eval()
    want = model(*inputs)
    passed = []
    note = intercepting(lambda call, proceed: passed.append(call) or proceed(call))
    with note, rg.look(model) as sight:
        got = model(*inputs)
    first = want[0] if isinstance(want, tuple) else want
    assert torch.equal(got[0] if isinstance(got, tuple) else got, first)
    assert len(sight) == len(passed) > 0
    for site, call in zip(sight, passed, strict=True):
        terms = {"mask": call.terms.mask, "bias": call.terms.bias, "sinks": call.terms.sinks}
        terms |= {"softcap": call.terms.softcap, "score": call.terms.score}
        terms |= {"scale": None if call.terms.score else call.terms.scale}
        w = rg.attention_weights(call.q, call.k, offset=call.terms.offset, **terms)
        assert_close(site.weights(), w)
        assert not site.q.requires_grad
    assert all("record_gates" in why for why in sight.skipped.values())
    assert set(sight.skipped) == RECURRENT.get(name, set())


def test_names_are_short_and_paths_are_the_models():
    model = translator().eval()
    with rg.look(model) as sight:
        model(IDS, IDS)
    assert sight.names == [
        "encoder.0.self",
        "encoder.1.self",
        "decoder.0.self",
        "decoder.0.cross",
        "decoder.1.self",
        "decoder.1.cross",
    ]
    paths = dict(model.named_modules())
    assert all(isinstance(paths[site.path], rg.nn.MultiHeadAttention) for site in sight)
    assert [site.kind for site in sight] == ["self", "self", "self", "cross", "self", "cross"]


def test_steps_of_a_recurrent_decoder_join_into_one_map():
    model = recurrent("bahdanau").eval()
    with rg.look(model) as sight:
        model(IDS, IDS[:, :5])
    assert len(sight.calls("decoder.cross")) == 5
    joined = sight.join("decoder.cross")
    assert (joined.queries, joined.keys, joined.kind) == (5, 6, "cross")
    assert_close(joined.weights().sum(-1), torch.ones(2, 1, 5))


def test_states_that_look_back_see_all_before_them_and_not_themselves():
    model = recurrent("hybrid").eval()
    with rg.look(model) as sight:
        model(IDS, IDS[:, :5])
    joined = sight.join("encoder.0.self")
    assert (joined.queries, joined.keys) == (5, 5)  # the first state has no past to ask
    assert torch.equal(joined.weights()[0, 0] > 0, torch.ones(5, 5, dtype=torch.bool).tril())
    found = joined.survey(statistics=["self_share", "previous_share", "mean_distance"])
    assert (found.self_share == 0).all()
    assert_close(found.previous_share[0, 0, 0], torch.tensor(1.0))
    assert (found.mean_distance >= 1 - 1e-6).all()


def test_a_glob_chooses_sites():
    model = translator().eval()
    with rg.look(model, "decoder.*.cross") as sight:
        model(IDS, IDS)
    assert sight.names == ["decoder.0.cross", "decoder.1.cross"]


def test_beyond_the_budget_sites_are_named_and_counted_where_one_looks(tmp_path):
    model = translator().eval()
    one = 5 * 2 * 6 * 64 * 4  # q, k, v, out and at most as much for lse and lengths
    note = "4 of 6 attentions missing or incomplete: over max_bytes=30720"
    with pytest.warns(UserWarning, match=note), rg.look(model, max_bytes=2 * one) as sight:
        model(IDS, IDS)
    heads = sight.heads()
    assert heads.note.startswith(note)
    assert note in repr(heads)
    assert note in heads._repr_html_()
    drawn = (rg.draw.heads(sight), rg.draw.head_types(heads), rg.draw.token(sight, 0))
    both = rg.inspection.compare_sights(sight, sight)
    for figure in (*drawn, rg.draw.comparison(both, count=1)):
        assert note in figure.get_supxlabel().replace("\n", " ")
    assert note in repr(both)
    assert note in rg.inspection.write_comparison(both, tmp_path / "both.html").read_text()
    assert sight.names == ["encoder.0.self", "encoder.1.self"]
    assert list(sight.skipped) == [
        f"decoder.{i}.{kind}" for i in (0, 1) for kind in ("self", "cross")
    ]
    assert "over max_bytes=30720; try at=" in sight.skipped["decoder.0.self"]
    with pytest.raises(
        LookError, match="needs one of the sites, got 'decoder.0.self', which was skipped"
    ):
        sight["decoder.0.self"]


def test_statistics_while_recording_match_those_afterwards_and_keep_no_tensors():
    model = translator().eval()
    with rg.look(model) as later:
        model(IDS, IDS)
    with rg.look(
        model, survey={"statistics": ["entropy", "top_weights"], "top_k": 2}, max_bytes=0
    ) as sight:
        model(IDS, IDS)
    for site, whole in zip(sight, later, strict=True):
        want = whole.survey(statistics=["entropy", "top_weights"], top_k=2)
        assert site.recorded_survey is not None
        assert torch.equal(site.recorded_survey.entropy, want.entropy)
        assert torch.equal(site.recorded_survey.top_weights, want.top_weights)
        assert site.q.is_meta
        assert (site.heads, site.queries, site.keys) == (whole.heads, whole.queries, whole.keys)


def test_statistics_are_differentiable_on_request():
    layer = rg.nn.MultiHeadAttention(8, 2)
    with rg.look(layer, grad=True) as sight:
        layer(torch.randn(1, 4, 8))
    entropy = sight.sites[0].survey(statistics=["entropy"]).entropy
    assert entropy is not None
    entropy.sum().backward()
    assert layer.to_q.weight.grad.abs().sum() > 0


def test_keeping_on_another_device_moves_masks_and_biases_too():
    model = translator().eval()
    with rg.look(model, device="meta") as sight:
        model(IDS, IDS, LENGTHS)
    mask = sight["encoder.0.self"].terms.mask
    assert isinstance(mask, rg.Padding)
    assert mask.lengths.is_meta
    assert sight["encoder.0.self"].k.is_meta


def test_hooks_are_gone_afterwards_also_after_an_error():
    model = translator().eval()
    with pytest.raises(ShapeError, match="tokens"), rg.look(model):
        model(IDS + 99, IDS)
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())


def test_an_error_inside_the_model_that_is_caught_does_not_confuse_names():
    model = translator().eval()
    with rg.look(model) as sight:
        with pytest.raises(ValueError, match="needs"):
            model(IDS, torch.zeros(2, 9999, dtype=torch.long) + 99)
        sight.sites.clear()
        model(IDS, IDS)
    assert [site.name for site in sight][-1] == "decoder.1.cross"


def test_recomputation_of_checkpointing_is_recorded_once():
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = rg.nn.EncoderBlock(8, 2)

        def forward(self, x):
            return checkpoint(self.block, x, use_reentrant=False)

    model = Checkpointed()
    with rg.look(model) as sight:
        model(torch.randn(1, 3, 8)).sum().backward()
    assert [site.name for site in sight] == ["block.self"]


def test_attention_outside_the_model_is_not_recorded():
    model, other = rg.nn.MultiHeadAttention(8, 2), rg.nn.MultiHeadAttention(8, 2)
    with rg.look(model) as sight:
        model(torch.randn(1, 3, 8)), other(torch.randn(1, 3, 8))
    assert len(sight) == 1


def test_one_look_within_another_sees_the_same():
    model = rg.nn.EncoderBlock(8, 2)
    with rg.look(model) as outer, rg.look(model) as inner:
        model(torch.randn(1, 3, 8))
    assert torch.equal(outer["self"].lse, inner["self"].lse)


def test_a_sight_keeps_no_model_alive():
    model = rg.nn.EncoderBlock(8, 2)
    with rg.look(model) as sight:
        model(torch.randn(1, 3, 8))
    there = weakref.ref(model)
    del model
    gc.collect()
    assert there() is None
    assert len(sight) == 1


@pytest.mark.usefixtures("users_view")
def test_never_an_empty_sight():
    model, linear = translator().eval(), nn.Linear(2, 2)
    fits = r"at: needs a glob that matches one of encoder.0.self, .*got 'x\*'"
    with pytest.raises(LookError, match=fits), rg.look(model, "x*"):
        model(IDS, IDS)
    with pytest.raises(LookError, match="model: needs to run inside"), rg.look(model):
        pass
    none = "model: needs an attention that can be recorded, got none"
    with pytest.raises(LookError, match=none), rg.look(linear):
        linear(torch.ones(1, 2))


@pytest.mark.usefixtures("users_view")
def test_a_compiled_model_is_refused_before_it_runs():
    compiled = torch.compile(rg.nn.EncoderBlock(8, 2), backend="eager")
    model = nn.Sequential(rg.nn.EncoderBlock(8, 2), compiled)
    refused = "needs to run without torch.compile to be recorded, got 1 compiled"
    with pytest.raises(LookError, match=refused), rg.look(model):
        pass
    layer = rg.nn.EncoderBlock(8, 2)
    layer.compile(backend="eager")
    before = "got it compiled; try the uncompiled model"
    with pytest.raises(LookError, match=before), rg.look(layer):
        pass


@pytest.mark.usefixtures("users_view")
@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("run", [rg.look, lambda m: rg.what_if(m, rg.edit.drop_head("*", 0))])
def test_a_compiled_copy_raises_one_line(run, fullgraph):
    torch.compiler.reset()
    model = rg.nn.EncoderBlock(8, 2).eval()
    compiled = torch.compile(model, backend="eager", fullgraph=fullgraph)
    with (
        torch.no_grad(),
        pytest.raises(LookError, match="^model: needs to run [^\n]*$"),
        run(model),
    ):
        compiled(torch.ones(1, 3, 8))


def test_a_dynamo_error_of_a_compiled_copy_is_one_line():
    with (
        pytest.raises(LookError, match="^model: needs to run without torch.compile[^\n]*$"),
        rg.look(rg.nn.EncoderBlock(8, 2)),
    ):
        raise torch._dynamo.exc.Unsupported("data-dependent branching\n  Explanation: …")
