"""torch.compile: used where it pays, one graph for all lengths."""

import os
import subprocess
import sys

import pytest
import torch
from toy import make_trainer

from regard import models
from regard.train import TrainConfig
from regard.train.updates import PROBE_BATCHES, CompilePolicy, build_compile_policy

CUDA, CPU = torch.device("cuda"), torch.device("cpu")


def answer(model, device=CUDA, **changes) -> str:
    return build_compile_policy(TrainConfig(**{"steps": 5000} | changes), model, device).mode


def test_auto_compiles_where_it_pays():
    transformer = models.Translator(models.translator_tiny(8, dim=16, heads=2))
    looped = models.RecurrentTranslator(models.recurrent_tiny(8))
    assert answer(transformer) == "fixed"
    assert answer(transformer, steps=500) == "off"  # over before it has paid
    assert answer(transformer, device=CPU) == "off"
    assert answer(looped) == "off"
    assert answer(looped, compile="on") == "on"
    assert answer(transformer, compile="off") == "off"


@pytest.mark.parametrize(("lengths", "open_"), [((3,), False), ((3, 4), False), (range(9), True)])
def test_sizes_are_dynamic_only_for_many_shapes(monkeypatch, lengths, open_):
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda f, dynamic, mode: compiled.append(dynamic) or f)
    policy = CompilePolicy("on")
    for n in range(PROBE_BATCHES + 3):
        policy.loss_function(sum, {"x": torch.zeros(lengths[n % len(lengths)])})
    assert compiled == [open_]


def test_cuda_graphs_need_one_batch_per_update_on_one_gpu():
    model = models.Translator(models.translator_tiny(8, dim=16, heads=2))

    def has_graphs(device=CUDA, way="none", **changes):
        return build_compile_policy(TrainConfig(steps=5000, **changes), model, device, way).graphs

    assert has_graphs()
    assert has_graphs(compile="on")
    assert not (has_graphs(CPU))
    assert not (has_graphs(way="ddp"))
    assert not (has_graphs(accumulate=2))


# torch's own, of what it loads to count the steps of graphs
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`")
@pytest.mark.parametrize(("lengths", "mode"), [((3,), "reduce-overhead"), (range(9), None)])
def test_few_shapes_are_replayed_as_cuda_graphs(monkeypatch, lengths, mode):
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda f, dynamic, mode: compiled.append(mode) or f)
    policy = CompilePolicy("on", graphs=True)
    for n in range(PROBE_BATCHES + 3):
        policy.loss_function(sum, {"x": torch.zeros(lengths[n % len(lengths)])})
    assert compiled == [mode]


def test_many_shapes_are_compiled_only_on_request(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda f, dynamic, mode: len)
    batches = [{"x": torch.zeros(n)} for n in range(PROBE_BATCHES + 1)]
    for ask, want in (("fixed", sum), ("on", len)):
        policy = CompilePolicy(ask)
        assert [policy.loss_function(sum, batch) for batch in batches][-1] is want


def test_a_new_shape_beside_few_is_not_compiled(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda f, dynamic, mode: len)
    policy = CompilePolicy("fixed")
    for n in range(PROBE_BATCHES):
        assert policy.loss_function(sum, {"x": torch.zeros(3 + n % 2)}) is sum
    assert policy.loss_function(sum, {"x": torch.zeros(3)}) is len
    assert policy.loss_function(sum, {"x": torch.zeros(4)}) is len
    assert policy.loss_function(sum, {"x": torch.zeros(1)}) is sum


def test_an_identity_compiler_leaves_training_unchanged(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda f, dynamic, mode: f)
    losses = []
    for mode in ("off", "on"):
        trainer = make_trainer(compile=mode)
        trainer.run()
        losses.append(trainer.loss)
    assert losses[0] == losses[1]


CODE = """
import torch, regard as rg
from regard.ops.attend import fused
from regard.train import objective
import regard.nn.attention, regard.nn.embedding
def by_torch(q, k, v, *, mask, dropout, scale, **rest):
    return fused.attend_by_sdpa(q, k, v, mask, scale, dropout), None   # what a GPU takes
regard.nn.attention.attend = by_torch
regard.nn.embedding._check_tokens = lambda tokens, vocab: None  # asked on a CPU alone
def draw(rows, time):
    lengths = torch.full((rows,), time)
    tokens = lambda n: torch.randint(0, 50, (rows, n))
    return {"source": tokens(time), "source_lengths": lengths, "target": tokens(time + 1),
            "target_lengths": lengths, "tokens": tokens(time), "label": torch.zeros(rows).long(),
            "pixels": torch.randn(rows, 1, 28, 28)}
for loss, model in (("translation", rg.models.Translator(rg.models.translator_tiny(50))),
                    ("next_token", rg.models.LanguageModel(rg.models.language_small(50))),
                    ("class", rg.models.VisionTransformer(rg.models.vision_tiny(10)))):
    graphs = []
    keep = lambda graph, inputs: graphs.append(graph) or graph
    total = torch.compile(objective(loss).loss_sum, dynamic=True, fullgraph=True, backend=keep)
    for rows, time in ((3, 9), (4, 11), (5, 20)):
        batch = draw(rows, time)
        if loss == "class":
            batch = {name: batch[name] for name in ("pixels", "label")}
        total(model, batch, 0.1).backward()
    print(loss, len(graphs))
"""


@pytest.mark.slow
def test_one_graph_is_compiled_for_all_lengths():
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", CODE], env=env, capture_output=True, text=True)
    assert done.stdout.split() == ["translation", "1", "next_token", "1", "class", "1"], done.stderr
