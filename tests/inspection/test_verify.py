"""`verify` finds nothing wrong with a sound library, and each planted error."""

import copy
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from hybrids import make_hybrid, token_ids

import regard as rg
from regard.inspection import verification as checks
from regard.inspection.sites.mixer_site import MixerSite
from regard.inspection.sites.site import Site

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from tiny_models import make, text_inputs  # noqa: E402

IDS = torch.tensor([[3, 9, 4, 30, 7, 2]])


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=24, initializer_range=0.2,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def test_a_sound_model_passes_every_check(model):
    found = rg.inspection.verify(model, {"input_ids": IDS})
    assert found.passed
    assert {r.name for r in found.results if r.status != "ok"} == {"mixers"}  # it has none
    assert len(found.results) == len(checks.CHECKS)
    assert "largest error" in repr(found)
    assert model.config._attn_implementation == "sdpa"


def test_what_does_not_apply_is_named():
    config = transformers.BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=24,
    )  # fmt: skip
    found = rg.inspection.verify(transformers.BertForMaskedLM(config).eval(), {"input_ids": IDS})
    by_name = {r.name: r for r in found.results}
    assert found.passed
    assert by_name["maps"].status == "ok"
    assert by_name["logit attribution"].status == "not applicable"
    assert "got a BertForMaskedLM whose head" in by_name["logit attribution"].reason


SIZES = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 24}
LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 4}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        # a gate is declared behind the output projection
        (
            "Afmoe",
            SIZES | LAYERS | {"head_dim": 4, "num_key_value_heads": 2, "num_dense_layers": 2},
        ),
        # ALiBi with batch and heads in one axis
        ("Bloom", {"vocab_size": 40, "hidden_size": 16, "n_layer": 2, "n_head": 4}),
        # norms whose epsilon is in the code only
        ("Olmo", SIZES | LAYERS),
    ],
)
def test_architectures_with_a_habit_of_their_own(kind, options):
    torch.manual_seed(0)
    if not hasattr(transformers, f"{kind}Config"):
        pytest.skip(f"this transformers has no {kind}")
    config = getattr(transformers, f"{kind}Config")(**options, pad_token_id=None)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    found = rg.inspection.verify(model, {"input_ids": IDS})
    assert {r.status for r in found.results if r.name != "mixers"} == {"ok"}, found


@pytest.mark.parametrize("norm_first", [True, False], ids=["gemma2", "olmo2"])
@pytest.mark.parametrize("parallel", [True, False])
def test_every_option_of_a_block_together_passes_every_check(norm_first, parallel):
    config = rg.models.language_small(
        40, layers=2, dim=16, heads=4, kv_heads=2, ffn_dim=24, qk_norm="head", rope_dim=2,
        rope_scaling=rg.ops.RopeScaling("llama3", 4.0, 16), output_norm=True, softcap=3.0,
        output_softcap=2.0, window=(3, None), local_rope_theta=50.0, norm_first=norm_first,
        parallel=parallel,
    )  # fmt: skip
    torch.manual_seed(0)
    model = rg.models.LanguageModel(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    found = rg.inspection.verify(model, IDS)
    assert {r.status for r in found.results if r.name != "mixers"} == {"ok"}, found


def test_a_model_without_a_head_is_verified():
    config = transformers.BertConfig(**SIZES, **LAYERS)
    found = rg.inspection.verify(transformers.BertModel(config).eval(), {"input_ids": IDS})
    status = {r.name: r.status for r in found.results}
    assert found.passed
    assert status["maps"] == status["edits"] == status["patching"] == status["gradients"] == "ok"
    assert status["lens"] == "not applicable"


def test_a_check_that_raises_is_reported(model, monkeypatch):
    def broken(*args, **options):
        raise IndexError("out of range")

    monkeypatch.setattr(checks, "logit_lens", broken)
    found = rg.inspection.verify(model, {"input_ids": IDS})
    assert not found.passed
    assert "IndexError" in repr(found)


def test_a_wrong_map_is_found(model, monkeypatch):
    right = Site.window

    def wrong(self, *args, **kwargs):
        return right(self, *args, **kwargs) + 1e-3

    monkeypatch.setattr(Site, "window", wrong)
    found = {r.name: r.status for r in rg.inspection.verify(model, {"input_ids": IDS}).results}
    assert found["maps"] == found["survey"] == "wrong"
    assert found["output"] == "ok"


def test_weights_on_one_key_have_no_wrong_entropy(model):
    sharp = copy.deepcopy(model)
    with torch.no_grad():
        for block in sharp.model.layers:
            block.self_attn.q_proj.weight *= 1000
    checked = {r.name: r.status for r in rg.inspection.verify(sharp, {"input_ids": IDS}).results}
    assert checked["survey"] == "ok"


def test_equal_values_have_no_wrong_influence_but_a_wrong_one_is_found(model, monkeypatch):
    equal = copy.deepcopy(model)
    with torch.no_grad():
        for block in equal.model.layers:  # values that do not depend on the token
            block.self_attn.v_proj.weight.zero_()
            block.self_attn.v_proj.bias = torch.nn.Parameter(0.3 * torch.randn(8))
    checked = {r.name: r.status for r in rg.inspection.verify(equal, {"input_ids": IDS}).results}
    assert checked["influence"] == "ok"
    right = Site.influence

    def wrong(self):
        found = right(self)
        return replace(found, effect_on_query=1.01 * found.effect_on_query)

    monkeypatch.setattr(Site, "influence", wrong)
    checked = {r.name: r.status for r in rg.inspection.verify(model, {"input_ids": IDS}).results}
    assert checked["influence"] == "wrong"


def test_a_wrong_edit_and_a_wrong_attribution_are_found(model, monkeypatch):
    edit = checks.drop_head
    monkeypatch.setattr(checks, "drop_head", lambda site, head: edit(site, 0))
    split = checks.logit_attribution
    monkeypatch.setattr(
        checks,
        "logit_attribution",
        lambda *args, **kwargs: rg.inspection.LogitAttribution(
            2.0, split(*args, **kwargs).parts, 0.0
        ),
    )
    found = {r.name: r.status for r in rg.inspection.verify(model, {"input_ids": IDS}).results}
    assert found["edits"] == found["logit attribution"] == "wrong"


def test_gradients_are_checked_at_a_step_that_no_kink_bends(model, monkeypatch):
    blt = make("blt")  # its encoder takes maxima over the bytes of a patch
    assert _gradients(blt, text_inputs(blt)).status == "ok"
    right = checks.activation_gradients

    def wrong(*args):
        result = right(*args)
        for x in result.gradients._calls.values():
            x[0].mul_(1.1)
        return result

    monkeypatch.setattr(checks, "activation_gradients", wrong)
    assert _gradients(blt, text_inputs(blt)).status == "wrong"
    assert _gradients(model, {"input_ids": IDS}).status == "wrong"


def _gradients(model, inputs) -> checks.CheckResult:
    results = rg.inspection.verify(model, inputs).results
    return next(x for x in results if x.name == "gradients")


def test_command_on_a_folder(model, tmp_path, capsys):
    from typer.testing import CliRunner

    from regard.cli import app

    model.save_pretrained(tmp_path / "hub")
    result = CliRunner().invoke(app, ["verify", str(tmp_path / "hub"), "--text", "3 9 4 30 7"])
    assert result.exit_code == 0, result.output
    assert "split score" in result.output
    result = CliRunner().invoke(app, ["verify", str(tmp_path / "nowhere")])
    assert result.exit_code == 2


# transformers 4 writes most mixers out in the layer: they are named in `skipped` there
in_5 = pytest.mark.skipif(transformers.__version__ < "5", reason="mixers of transformers 5")


@pytest.mark.parametrize(
    "kind",
    ["recurrent_gemma", *(pytest.param(x, marks=in_5) for x in ("qwen3_next", "mamba2", "lfm2"))],
)
def test_linear_mixers_are_verified(kind):
    found = rg.inspection.verify(make_hybrid(kind), {"input_ids": token_ids()})
    assert not [r for r in found.results if "raised" in r.reason]
    assert {r.name: r.status for r in found.results}["mixers"] == "ok"


@in_5
def test_a_planted_error_of_a_mixer_is_found(monkeypatch):
    monkeypatch.setattr(MixerSite, "window", lambda site: 1.001 * site.mixer.v @ site.mixer.v.mT)
    found = rg.inspection.verify(make_hybrid("qwen3_next"), {"input_ids": token_ids()})
    assert {r.name: r.status for r in found.results}["mixers"] == "wrong"


def test_a_mixer_that_a_release_writes_out_is_named():
    model = make_hybrid("qwen3_next")
    with torch.no_grad(), rg.look(model) as sight:
        model(input_ids=token_ids())
    mixers = {name for name, layer in model.named_modules() if name.endswith("linear_attn")}
    recorded = {site.name for site in sight.mixers} | set(sight.skipped)
    assert mixers
    assert mixers <= recorded
