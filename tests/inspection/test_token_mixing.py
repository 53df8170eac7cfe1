"""A sight accounts for every layer: sites and `skipped` are all that moves another position."""

import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard as rg
from regard.errors import LookError
from regard.inspection.record import token_mixing
from regard.inspection.record.look import patched
from regard.ops.intercept import intercepting
from regard.ops.mixers import intercepting_mixers

transformers = pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import tiny_models  # noqa: E402
from tiny_models import IDS, Unbuildable, mappings_of  # noqa: E402

transformers.logging.set_verbosity_error()
X = torch.randn(2, 9, 8, generator=torch.Generator().manual_seed(0))
HERE = 4  # the token that is changed
FEW = ("llama", "bert", "t5", "qwen3_next", "granitemoehybrid", "jamba", "lfm2", "kimi_linear")
FEW += ("falcon_h1", "zamba2", "bamba", "nemotron_h", "mobilebert", "convbert", "cpmant")
FEW += ("deepseek_v32", "qwen3_5_text", "gemma4_text", "minimax", "longt5")
LANGUAGE = {"causal LM", "seq2seq", "masked LM"}
# Reformer's hashes are random
ALL = [k for k in tiny_models.all_kinds() if LANGUAGE & {*mappings_of(k)} and k != "reformer"]


def call(model, ids):
    given = {"input_ids": ids}
    if getattr(model.config, "is_encoder_decoder", False):
        given["decoder_input_ids"] = ids[:, :7]
    return model(**given, use_cache=False) if "mamba" in model.config.model_type else model(**given)


class Frozen:
    """Outputs of the first run, given again in the second."""

    def __init__(self, model, sight):
        self.model = model
        self.sites = {site.path for site in (*sight.sites, *sight.mixers)}
        self.modules = {path: m for path, m in model.named_modules() if path in sight.skipped}
        self.first, self.counts = {}, {}

    def again(self, name, out):
        count = self.counts[name] = self.counts.get(name, -1) + 1
        return self.first.setdefault((name, count), out)

    def attend(self, call, proceed):
        path, out = self.tracker.caller.path, proceed(call)
        return self.again(path, out) if path in self.sites else out

    def run(self, ids):
        self.counts.clear()
        with ExitStack() as stack, torch.no_grad():
            for path, module in self.modules.items():
                hook = module.register_forward_hook(lambda *x, p=path: self.again(p, x[-1]))
                stack.callback(hook.remove)
            self.tracker = stack.enter_context(patched(self.model))
            stack.enter_context(intercepting(self.attend, self.tracker))
            stack.enter_context(intercepting_mixers(self.attend, self.tracker))
            return call(self.model, ids)[0]


def difference_elsewhere(model, sight):
    """How far a token moves the output elsewhere, if all that the sight names cannot change."""
    frozen = Frozen(model, sight)
    first = frozen.run(IDS)
    second = frozen.run(IDS.index_fill(1, torch.tensor(HERE), 7))
    difference = (second - first).abs().amax((0, -1)) / first.abs().max()
    return float(difference[torch.arange(len(difference)) != HERE].max())


def check_every_mixer_is_accounted_for(kind):
    try:
        model = tiny_models.make_first(kind, mappings_of(kind))
    except Unbuildable as error:
        pytest.skip(f"no tiny config: {error}")
    for parameter in model.parameters():  # NeoMME's output projections begin at 0
        if parameter.ndim > 1 and not parameter.any():
            torch.nn.init.normal_(parameter, std=0.1)
    try:
        with torch.no_grad():
            call(model, IDS)
    except Exception as error:
        pytest.skip(f"not for text alone: {str(error)[:100]}")
    try:
        with torch.no_grad(), rg.look(model) as sight:
            call(model, IDS)
    except LookError as error:  # nothing in it can be recorded, and the reason says so
        if "needs an attention" in str(error):
            return
        raise
    assert not any("not known" in why for why in sight.skipped.values()), sight.skipped
    assert difference_elsewhere(model, sight) < 1e-4
    assert difference_elsewhere(model, rg.Sight()) > 1e-4  # the check can fail


@pytest.mark.parametrize("kind", FEW)
def test_positions_meet_in_sites_and_skipped_modules_alone(kind):
    check_every_mixer_is_accounted_for(kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ALL)
def test_positions_of_every_text_model_meet_in_sites_and_skipped_modules_alone(kind):
    check_every_mixer_is_accounted_for(kind)


class Form(nn.Module):
    """Attention written out in one way or another."""

    def __init__(self, function):
        super().__init__()
        self.function, self.proj = function, nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (2, 4)).transpose(1, 2) for y in self.proj(x).chunk(3, -1))
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        scores = (q @ k.mT / 2).masked_fill(later, -torch.inf)
        return x + self.function(scores, v).transpose(1, 2).flatten(2)


def talking(s, v):
    return torch.einsum("hg,bgqk->bhqk", torch.tensor([[1.0, 0.5], [0.2, 1.0]]), s.softmax(-1)) @ v


def softmax1(s, v):
    e = (s - s.amax(-1, keepdim=True)).exp()
    return (e / (1 + e.sum(-1, keepdim=True))) @ v


FORMS = {
    "talking": talking,
    "softmax1": softmax1,
    "clipped": lambda s, v: (1.2 * s.softmax(-1) - 0.1).clamp(0, 1) @ v,
    "log_softmax": lambda s, v: s.log_softmax(-1).exp() @ v,
    "sigmoid": lambda s, v: s.sigmoid() @ v,
    "renormalised": lambda s, v: F.normalize(s.softmax(-1), p=1, dim=-1) @ v,
    "topk": lambda s, v: s.where(s >= s.topk(2, -1)[0][..., -1:], -1e30).softmax(-1) @ v,
    "mean": lambda s, v: v.cumsum(-2) / 3,
    "shift": lambda s, v: v.roll(1, -2),
    "pooled": lambda s, v: v * v.mean((-1, -2), keepdim=True),
}


def plain(s, v):
    return s.softmax(-1) @ v


@pytest.mark.parametrize("name", FORMS)
def test_a_form_that_is_not_recorded_beside_a_plain_one_is_named(name):
    model = nn.Sequential(Form(plain), Form(FORMS[name])).eval()
    with torch.no_grad(), rg.look(model) as sight:
        model(X)
    assert {x.name for x in sight} | set(sight.skipped) == {"0", "1"}
    assert "0" not in sight.skipped
    if "1" in sight.skipped:
        assert sight.skipped["1"].startswith("Form computes")
        assert sight.coverage.startswith("1 of 2 layers recorded")


@pytest.mark.parametrize("name", FORMS)
def test_a_second_one_in_a_module_that_is_recorded_is_named(name):
    both = Form(lambda s, v: plain(s, v) + FORMS[name](s, v))
    with torch.no_grad(), rg.look(model := nn.Sequential(both, nn.Linear(8, 8)).eval()) as sight:
        model(X)
    if len(sight) == 1:  # else the second one is recorded too
        assert sight.skipped["0"]


def test_what_mixes_outside_of_any_inner_module_is_named_by_the_outer_one():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.norm = Form(plain), nn.LayerNorm(8)

        def forward(self, x):
            return self.norm(self.attention(x) + x.roll(1, 1))

    with torch.no_grad(), rg.look(model := Outer().eval()) as sight:
        model(X)
    assert sight.skipped == {"Outer": "Outer computes something else than softmax(q kᵀ + bias) v"}


def test_a_look_runs_the_check_once_and_leaves_no_trace(monkeypatch):
    ran = []
    replicate = token_mixing.replicate
    monkeypatch.setattr(token_mixing, "replicate", lambda m: ran.append(m) or replicate(m))
    last, norm = Form(talking), nn.BatchNorm1d(9)
    model, calls = nn.Sequential(Form(plain), nn.Dropout(0.5), norm, last), []
    last.register_forward_hook(lambda *_: calls.append(1))
    rng = torch.get_rng_state()
    model(X)
    after = torch.get_rng_state()
    for _ in range(2):
        torch.set_rng_state(rng)
        with rg.look(model) as sight:
            model(X)
        assert torch.equal(torch.get_rng_state(), after)
        assert list(sight.skipped) == ["3"]
    assert len(ran) == 1
    assert len(calls) == 3
    assert model.training
    assert norm.num_batches_tracked == 3
    model[3] = nn.Sequential(Form(softmax1))  # other layers are checked again
    with rg.look(model) as sight:
        model(X)
    assert len(ran) == 2
    assert list(sight.skipped) == ["3.0"]


def test_parts_that_are_called_one_by_one_are_checked_each():
    model = rg.models.Translator(rg.models.translator_tiny(vocab=10)).eval()
    ids = torch.tensor([[1, 2, 3, 4]])
    with torch.no_grad(), rg.look(model, "encoder.*") as sight:
        model.encode(ids)
    assert sight.skipped == {}


def test_a_model_that_cannot_be_run_again_is_named():
    class Once(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.used = Form(plain), []

        def forward(self, x, stream):
            next(stream)
            return self.attention(x)

    with torch.no_grad(), rg.look(model := Once().eval()) as sight:
        model(X, iter([1]))
    assert sight.skipped == {"Once": "what mixes positions in it is not known: StopIteration: "}
