"""Costs: published numbers, torch's own counter for every model, and measured memory."""

from dataclasses import replace

import pytest
import torch
from model_cases import BATCH, CASES, VOCAB, M, N, tokens
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import regard as rg
from regard import models
from regard.costs.model_cost import iter_cost_parts
from regard.errors import ConfigError
from regard.ops import intercept
from regard.ops.mixers import op as mixer_op
from regard.ops.recurrence import reference as steps


class ByTheReference:
    """Every recurrence as the equation says: torch's kernels hide their products."""

    def on_sequence(self, call, proceed):
        return proceed(replace(call, backend="reference"))

    def on_step(self, call, proceed):
        return proceed(call)


def by_products(mixer, proceed):
    """A linear mixer token by token: what is replaced, what is written and what is read."""
    state, outputs = mixer.q.new_zeros(*mixer.q.shape[:2], mixer.q.shape[-1], mixer.v.shape[-1]), []
    for t in range(mixer.time):
        q, k, r = (x[:, :, t, None] for x in (mixer.q, mixer.k, mixer.v))
        state = mixer.decays[:, :, t].exp()[..., None] * state
        if mixer.delta:
            r = r - k @ state
        state = state + k.mT @ (mixer.writes[:, :, t, None, None] * r)
        outputs.append(q @ state)
    out = torch.cat(outputs, -2)
    return mixer_op.MixResult(out, state)


def counted(model, *inputs):
    """Multiply-adds as torch counts them while the model runs."""

    def whole(call, proceed):
        return proceed(replace(call, backend="reference"))

    product = lambda a, b, out_shape=None, **_: 2 * a[0] * a[1]  # noqa: E731
    counter = FlopCounterMode(display=False, custom_mapping={torch.ops.aten.mv: product})
    with (
        torch.no_grad(),
        intercept.intercepting(whole),
        steps.intercepting_recurrence(ByTheReference()),
        mixer_op.intercepting_mixers(by_products),
        counter,
    ):
        model.eval()(*inputs)
    assert counter.get_total_flops() % 2 == 0
    return counter.get_total_flops() // 2


def cost_of(name):
    model, inputs = CASES[name]()
    source = {"vision": 12, "resnet": 9}.get(name, M)
    return rg.cost(model, source=source, target=N, batch=BATCH), model, inputs


def test_every_model_class_has_its_parts_and_a_case_here():
    public = [getattr(models, name) for name in models.__all__]
    classes = {x for x in public if isinstance(x, type) and issubclass(x, nn.Module)}
    ours = {x for x in models.MODELS.values() if x.__module__.startswith("regard.models.")}
    assert classes == ours, "decorate with register_model, and export"  # baselines of tasks apart
    assert classes == {type(make()[0]) for make in CASES.values()}, "add it to model_cases.py"
    default = iter_cost_parts.dispatch(nn.Module)
    assert not [x for x in classes if iter_cost_parts.dispatch(x) is default]


def test_layer_costs_match_the_textbook():
    assert rg.costs.layer_cost("attention", n=64, d=512) == 4 * 64 * 512**2 + 2 * 64**2 * 512
    assert [rg.costs.layer_cost(k, n=3, d=2) for k in ("rnn", "gru", "lstm")] == [24, 72, 96]
    assert rg.costs.layer_cost("feed_forward", n=3, d=2) == 96
    ratio = rg.costs.layer_cost("attention", 4096, 512) / rg.costs.layer_cost("rnn", 4096, 512)
    assert ratio == pytest.approx(10)


def test_attention_is_cheaper_than_a_gru_below_d_and_than_an_lstm_below_2d():
    for kind, n in (("gru", 512), ("lstm", 1024)):
        assert rg.costs.break_even_length(kind, d=512) == n
        for length, cheaper in ((n - 1, True), (n + 1, False)):
            ours, theirs = (
                rg.costs.layer_cost("attention", length, 512),
                rg.costs.layer_cost(kind, length, 512),
            )
            assert (ours < theirs) is cheaper
    assert rg.costs.break_even_length("rnn", d=512) is None


@pytest.mark.parametrize(("n", "times"), [(16, 8.7), (64, 35), (256, 150)])
def test_a_cache_saves_what_the_textbook_forgot(n, times):
    again = rg.costs.generation_cost(n, 64, cached=False) / rg.costs.generation_cost(n, 64)
    assert again == pytest.approx(times, rel=0.02)


@pytest.mark.parametrize(("n", "share"), [(30, 0.0144), (512, 0.20), (2048, 0.50)])
def test_one_more_language_costs_more_than_its_attention_maps(n, share):
    with torch.device("meta"):
        model = models.Translator(models.translator_base(vocab=1))
    found = rg.cost(model, source=n, target=n)
    maps = 6 * (2 * n * n + 2 * n * n) * 512
    target = sum(part.multiply_adds for part in found.parts if part.side == "target")
    assert maps / target == pytest.approx(share, rel=0.03)
    if n == 30:
        assert target / found.multiply_adds == pytest.approx(0.57, abs=0.01)


def test_formulas_are_read_as_they_are_written():
    assert rg.costs.Formula("BL(4nd² + 2n²d)").value(B=2, L=3, n=5, d=7) == 6 * (
        4 * 5 * 49 + 2 * 25 * 7
    )
    assert rg.costs.Formula("n³ - 2n + 1").value(n=3) == 22
    assert str(rg.costs.Formula("2nd²")) == "2nd²"


@pytest.mark.parametrize("name", CASES)
def test_multiply_adds_match_torchs_flop_counter(name):
    found, model, inputs = cost_of(name)
    assert found.multiply_adds == counted(model, *inputs)


@pytest.mark.parametrize("name", CASES)
def test_every_parameter_is_in_one_part(name):
    found, model, _ = cost_of(name)
    assert found.parameters == sum(p.numel() for p in model.parameters())
    assert all(part.bytes_moved > 0 for part in found.parts)


def kept_for_the_way_back(model, *inputs):
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    storages: dict[int, int] = {}

    def note(x):
        storage = x.untyped_storage()
        if storage.data_ptr() not in own:
            storages[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        out = model(*inputs)
    del out
    return sum(storages.values())


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_activations_are_what_autograd_keeps(activation, gated, norm):
    config = models.translator_small(
        vocab=50, activation=activation, gated=gated, norm=norm, dropout=0.0
    )
    model = models.Translator(config)
    found = rg.cost(model, source=100, target=60, batch=2)
    source, target = torch.zeros(2, 100).long(), torch.zeros(2, 60).long()
    kept = kept_for_the_way_back(model, source, target)
    assert sum(part.activation_bytes for part in found.parts) == pytest.approx(kept, rel=0.025)


@pytest.mark.parametrize("mixer", ["gated_delta", "retention"])
def test_what_linear_attention_keeps(mixer):
    model = models.LanguageModel(
        models.language_delta(50, layers=1, dim=128, heads=4, mixer=mixer, dropout=0.0)
    )
    part = rg.cost(model.decoder, source=256)["self-attention"]
    layer = model.decoder.blocks[0].self_attention
    kept = kept_for_the_way_back(layer, torch.randn(1, 256, 128, requires_grad=True))
    assert part.activation_bytes == pytest.approx(kept, rel=0.03)
    sizes = []

    def cache(layer, k, v):
        sizes.append(k.nbytes + v.nbytes)
        return k, v

    layer(torch.randn(1, 256, 128), cache=cache)
    assert part.cache_bytes == sizes[0]


def test_the_cache_is_the_keys_and_values_that_a_decoder_holds():
    model = models.Translator(models.translator_tiny(vocab=VOCAB))
    found = rg.cost(model, source=M, target=N, batch=BATCH)
    memory = model.decoder.project_memory(model.encode(tokens()))
    assert found["cross-attention"].cache_bytes == sum(k.nbytes + v.nbytes for k, v in memory)
    assert found["decoder self-attention"].cache_bytes == 4 * 2 * BATCH * N * 64 * 2
    assert found["encoder self-attention"].cache_bytes == 0


def test_it_prints_as_a_table_with_formula_and_number():
    found = rg.cost(models.Translator(models.translator_tiny(vocab=VOCAB)), source=M, target=N)
    text = str(found)
    assert "source M = 9, target N = 5" in text
    assert "BL(2Nd² + 2Md² + 2NMd)  L=2 N=5 M=9 d=64" in text
    row = next(line for line in text.splitlines() if "all" in line.split()[:1])
    assert f" {found.multiply_adds:,} " in row
    assert f" {found.parameters:,} " in row


@pytest.mark.usefixtures("users_view")
def test_errors_suggest_a_fix():
    with pytest.raises(ConfigError, match="got Linear; try a whole model"):
        rg.cost(nn.Linear(2, 2))
    with pytest.raises(ConfigError, match="source: needs 1 or more, got 0"):
        rg.cost(rg.nn.FeedForward(2), source=0)
    with pytest.raises(ConfigError, match="kind: needs one of attention"):
        rg.costs.layer_cost("scan", 1, 1)
    with pytest.raises(ConfigError, match="kind: needs one of rnn, gru, lstm"):
        rg.costs.break_even_length("attention", 1)
    with pytest.raises(ConfigError, match=r"got '\+ 4n\*d' in"):
        rg.costs.Formula("2n + 4n*d")
    with pytest.raises(ConfigError, match="one bracket"):
        rg.costs.Formula("(n)(d)")
    with pytest.raises(ConfigError, match="sizes: needs d of nd, got n"):
        rg.costs.Formula("nd").value(n=1)
    with pytest.raises(ConfigError, match="name: needs one of feed-forward"):
        rg.cost(rg.nn.FeedForward(2))["nought"]
