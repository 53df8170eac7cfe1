"""Experts: what a router chose, statistics of it, and edits."""

import sys
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import regard as rg
from regard.errors import LookError, ShapeError
from regard.inspection import Router

pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from tiny_models import IDS, MASK, make  # noqa: E402

FEW = ("mixtral", "deepseek_v3", "gpt_oss", "qwen3_next")
ALL = "qwen3_moe olmoe granitemoe granitemoehybrid nemotron_h jamba glm4_moe_lite "
ALL += "kimi_linear lfm2_moe ernie4_5_moe minimax phimoe hunyuan_v1_moe"


def look(model, **given):
    with torch.no_grad():
        want = model(**given).logits
        with rg.look(model, activations="*.router.*") as sight:
            assert torch.equal(model(**given).logits, want)
    return sight


def experts_of(model, block):
    """The module of the experts in a block, and what entered it."""
    layer = model.model.layers[int(block.rpartition(".")[2])]
    return next(m for m in layer.modules() if type(m).__name__.endswith("Experts"))


def check_that_weights_and_experts_give_the_output(model, implementation):
    model.set_experts_implementation(implementation)
    inputs, outs = {}, {}
    routed = look(model, input_ids=IDS).routers
    router = routed[name := list(routed)[-1]]
    module = experts_of(model, name)
    handle = module.register_forward_hook(lambda m, args, out: inputs.update(x=args[0], y=out))
    with torch.no_grad():
        model(IDS)
        handle.remove()
        for expert in range(router.count):  # each alone, with weight 1
            ids = torch.full((24, 1), expert)
            outs[expert] = module(inputs["x"], ids, torch.ones(24, 1)).view(2, 12, -1)
    each = torch.stack([outs[expert] for expert in range(router.count)], -1)
    expected = (each * router.map[:, :, None]).sum(-1)
    assert_close(inputs["y"].view_as(expected), expected, atol=1e-4, rtol=1e-4)
    assert router.experts.shape[:2] == (2, 12)
    if router.logits is not None:
        assert router.logits.shape == (2, 12, router.count)


@pytest.mark.parametrize("kind", FEW)
@pytest.mark.parametrize("implementation", ["eager", "grouped_mm"])
def test_the_recorded_choice_gives_the_output_of_the_mixture(kind, implementation):
    check_that_weights_and_experts_give_the_output(make(kind), implementation)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ALL.split())
@pytest.mark.parametrize("implementation", ["eager", "grouped_mm", "batched_mm"])
def test_the_recorded_choice_gives_the_output_of_every_mixture(kind, implementation):
    model = make(kind)
    if not look(model, input_ids=IDS).routers:
        pytest.fail("no router was found")
    check_that_weights_and_experts_give_the_output(model, implementation)


def worked():
    chosen = torch.tensor([[[0, 2], [2, 1], [2, 3]]])
    weights = torch.tensor([[[0.5, 0.5], [1.0, 0.0], [0.75, 0.25]]])
    return Router("decoder.0", chosen, weights, 4, labels=[["a", "b", "c"]])


def test_statistics_by_hand():
    router = worked()
    assert_close(router.load, torch.tensor([0.2, 0.0, 0.6, 0.2]))  # a weight of 0 is no choice
    expected = torch.tensor([[0.0, 2.0, 0.0]]) - torch.tensor([[-0.6931, 2.0, -0.5623]])
    assert_close(router.entropy, expected, atol=1e-4, rtol=0)
    assert_close(router.co_routing[2], torch.tensor([1 / 3, 0.0, 1.0, 1 / 3]))
    assert router.tokens(2, 2) == [(0, 1, "b", 1.0), (0, 2, "c", 0.75)]
    assert router.tokens(1) == []
    assert router.balance == pytest.approx(0.6855, abs=1e-4)
    assert repr(router) == (
        "decoder.0: 2 of 4 experts per token, largest load 0.600 (expert 2), 1 unused, "
        "balance 0.685"
    )


def test_padding_does_not_count():
    router = worked().where(torch.tensor([[True, False, False]]))
    assert_close(router.load, torch.tensor([0.5, 0.0, 0.5, 0.0]))
    assert [token.label for token in router.tokens(2)] == ["a"]
    with pytest.raises(ShapeError, match=r"valid: needs one per token, \(1, 3\)"):
        worked().where(torch.ones(3))
    sight = look(make("mixtral"), input_ids=IDS, attention_mask=MASK)
    routers = sight.routers.where(MASK)
    assert float(routers["decoder.0"].co_routing.diagonal().sum()) == pytest.approx(2)
    assert "decoder.0" in repr(routers)


def test_a_dropped_expert_adds_nothing_and_the_others_stay():
    model = make("mixtral")
    router = look(model, input_ids=IDS).routers["decoder.1"]
    expert = int(router.load.argmax())
    edit, names = rg.edit.drop_expert("decoder.1", expert), "*.router.*"
    with (
        torch.no_grad(),
        rg.look(model, activations=names) as sight,
        rg.what_if(model, edit) as log,
    ):
        model(IDS)
    assert list(log.applied_calls[0]) == ["decoder.1.router.choice"]
    after = sight.routers["decoder.1"]
    assert_close(after.map, router.map.index_fill(-1, torch.tensor(expert), 0))


def test_forced_experts_share_the_weight_of_each_token():
    model = make("deepseek_v3")
    name = list(look(model, input_ids=IDS).routers)[0]
    edit = rg.edit.force_expert(name, [3, 0], positions=[2])
    names = "*.router.*"
    with torch.no_grad(), rg.look(model, activations=names) as sight, rg.what_if(model, edit):
        model(IDS)
    weights, before = sight.routers[name].map, look(model, input_ids=IDS).routers[name].map
    assert_close(weights[:, 2, 3], before[:, 2].sum(-1) / 2)
    assert_close(weights[:, 2, 0], before[:, 2].sum(-1) / 2)
    assert_close(weights[:, [0, 1, 3]], before[:, [0, 1, 3]])


def test_half_precision_keeps_the_indices():
    model = make("mixtral").bfloat16()
    router = look(model, input_ids=IDS).routers["decoder.0"]
    assert router.experts.dtype == torch.int64
    assert_close(router.weights.sum(-1), torch.ones(2, 12), atol=1e-2, rtol=0)


def test_bad_experts_are_refused_in_one_line():
    model = make("mixtral")
    for edit, message in (
        (rg.edit.drop_expert("*", 8), "experts: needs less than 8, got 8"),
        (rg.edit.force_expert("*", [1, 2, 3]), "experts: needs at most 2, those of a token, got 3"),
    ):
        with torch.no_grad(), pytest.raises(ShapeError, match=message), rg.what_if(model, edit):
            model(IDS)
    edit = rg.edit.drop_expert("*", 0)
    with pytest.raises(LookError, match="name: needs a glob"), rg.what_if(make("llama"), edit):
        pass
    with pytest.raises(LookError, match=r"none; try look\(model, activations="):
        _ = rg.Sight().routers["decoder.0"]


def test_steps_of_a_generation_follow_each_other():
    model = make("mixtral")
    with torch.no_grad(), rg.look(model, activations="*.router.*") as sight:
        ids = model.generate(IDS[:1], max_new_tokens=3, do_sample=False, eos_token_id=99)
    router = sight.routers["decoder.0"]
    assert router.experts.shape == (1, 14, 2)
    whole = look(model, input_ids=ids[:, :14]).routers["decoder.0"]
    assert_close(router.map, whole.map, atol=1e-4, rtol=0)


def test_tokens_of_an_expert_have_their_labels():
    names = [f"token {i}" for i in range(12)]
    model, globs = make("mixtral"), "*.router.*"
    with torch.no_grad(), rg.look(model, activations=globs, tokens=names) as sight:
        model(IDS[:1])
    token = sight.routers["decoder.0"].tokens(int(sight.routers["decoder.0"].experts[0, 0, 0]))[0]
    assert token.label == f"token {token.position}"
