"""Lens, attribution, patching and edits on hybrids: blocks and mixers by what they compute."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import regard as rg
from regard.errors import LookError
from regard.inspection.adapters.block_layout import find_mixers

pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from tiny_models import IDS, make  # noqa: E402

X = IDS[:1]
HYBRIDS = "nemotron_h granitemoehybrid jamba bamba zamba zamba2 qwen3_next qwen3_5_text lfm2 "
HYBRIDS += "falcon_h1 gemma4_text"
BESIDE = ("zamba", "zamba2", "gemma4_text")
FEW = ("nemotron_h", "granitemoehybrid", "jamba", "zamba2", "falcon_h1", "lfm2")


def metric(logits):
    return logits[0, -1, 4] - logits[0, -1, 5]


def check_parts_sum_to_the_logits(kind):
    model = make(kind)
    with torch.no_grad():
        want = model(X).logits
    lens = rg.inspection.logit_lens(model, X)
    assert len(lens.logits) == model.config.num_hidden_layers + 1
    torch.testing.assert_close(lens.logits[-1], want, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(lens.logits[0], rg.inspection.logit_lens(model, X).logits[0])
    for by in ("part", "head"):
        result = rg.inspection.logit_attribution(model, X, 4, against=5, by=by)
        size = max(abs(x) for x in result.parts.values())
        assert abs(result.error) < 1e-4 * size
    return model, result


@pytest.mark.parametrize("kind", FEW)
def test_parts_of_a_hybrid_sum_to_the_logits(kind):
    check_parts_sum_to_the_logits(kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", HYBRIDS.split())
def test_parts_of_every_hybrid_sum_to_the_logits_and_can_be_patched(kind):
    model, _ = check_parts_sum_to_the_logits(kind)
    result = rg.patching.sweep(model, X, X.roll(1, 1), metric, over="residual")
    # blocks of these read the embedding, or one per layer, beside the stream
    assert kind in BESIDE or float(result.effect[0]) == pytest.approx(1, abs=1e-4)


def test_patching_a_mixer_is_an_edited_run():
    model, corrupt = make("jamba"), X.roll(1, 1)
    result = rg.patching.sweep(model, X, corrupt, metric, over="mixer×position")
    name = "decoder.0.mixer.out"
    assert result.labels[0] == ["decoder.0"]
    with torch.no_grad(), rg.look(model, "", activations=name) as sight:
        model(X)
    edit = rg.edit.set_activation(name, sight.activations[name], positions=11)
    with torch.no_grad(), rg.what_if(model, edit):
        expected = metric(model(corrupt).logits)
    assert float(result.values[0, 11]) == pytest.approx(float(expected), abs=1e-5)


def test_parallel_streams_are_patched_and_not_split():
    model = make("gemma3n_text")
    result = rg.patching.sweep(model, X, X.roll(1, 1), metric, over="residual")
    assert float(result.effect[0]) == pytest.approx(1, abs=1e-4)
    gradient = rg.patching.sweep(model, X, X.roll(1, 1), metric, over="residual", method="gradient")
    assert gradient.values.shape == result.values.shape
    with pytest.raises(LookError, match=r"one residual stream .* \(4, 32\) of parallel streams"):
        rg.inspection.logit_attribution(model, X, 4)


class Shift(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return self.linear(x.roll(1, 1))


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return self.linear(x).relu()


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.thing = nn.LayerNorm(8), Shift()

    def forward(self, x):
        return x + self.thing(self.norm(x))


def test_a_mixer_is_found_by_what_it_does():
    block = nn.ModuleDict({"a": Plain(), "b": Shift(), "c": Inner(), "d": nn.LayerNorm(8)})
    assert find_mixers(block) == ["b", "c.thing"]


def test_a_module_that_several_blocks_share_is_no_part_of_one():
    blocks = nn.ModuleList([Inner(), Inner(), Inner()])
    assert "encoder.2.mixer.out" in rg.inspection.activation_names(blocks)
    blocks[2].thing = blocks[1].thing
    names = rg.inspection.activation_names(blocks)
    assert [name for name in names if "mixer.out" in name] == ["encoder.0.mixer.out"]


@pytest.mark.parametrize("kind", ["lfm2", "jamba"])
def test_a_look_does_not_record_the_trials_of_modules(kind):
    with torch.no_grad(), rg.look(model := make(kind)) as sight:
        model(X)
    assert [site.call for site in sight.mixers] == [0] * len(sight.mixers)
    assert len(sight.sites) == 1
    assert "decoder.1.self" in sight.aliases.values()


@torch.no_grad()
def test_a_model_without_attention_passes_the_checks_that_apply():
    found = rg.inspection.verify(make("mamba2"), X)
    assert found.passed
    reasons = {result.name: result.reason for result in found.results if result.error is None}
    assert reasons["survey"].startswith("model: needs an attention for this, got other mixers")
    assert "lens" not in reasons


@pytest.mark.parametrize("kind", ["recurrent_gemma", "gemma4_text"])
def test_bounded_logits_are_those_of_the_lens(kind):
    with torch.no_grad():
        want = (model := make(kind))(X).logits
    torch.testing.assert_close(
        rg.inspection.logit_lens(model, X).logits[-1], want, atol=1e-6, rtol=1e-5
    )
