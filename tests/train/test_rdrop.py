"""R-Drop: the loss by hand, no change without it, exact resume."""

import math
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from test_schedule_and_loss import CASES
from torch import nn
from torch.testing import assert_close
from toy import make_trainer, run_until

from regard.errors import ConfigError
from regard.train import TrainConfig, Trainer, copy_weights, objective, symmetric_kl
from regard.train.updates import has_dropout

# ---- worked numbers


class Alternating(nn.Module):
    """Says one thing of the first half of a batch, another of the second, as two dropouts would."""

    def __init__(self, first, second):
        super().__init__()
        self.said = nn.Parameter(torch.tensor([first, second]).log())

    def forward(self, pixels):
        return self.said.repeat_interleave(len(pixels) // 2, 0)


def test_the_rdrop_loss_is_the_mean_of_both_passes_plus_their_divergence():
    model = Alternating([0.75, 0.25], [0.5, 0.5])
    batch = {"pixels": torch.zeros(3, 1), "label": torch.tensor([0, 0, 1])}
    one = 2 * math.log(4 / 3) + math.log(4)
    other = 3 * math.log(2)
    there = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    back = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    want = (one + other) / 2 + 0.7 * 3 * (there + back) / 2
    total = objective("class").loss_sum(model, batch, 0.0, 0.7)
    assert_close(total, torch.tensor(want))
    assert int(objective("class").size(batch)) == 3  # of the batch once


def test_the_second_pass_reads_the_second_view():
    one, other = torch.randn(2, 3, 5)
    batch = {"pixels": one, "label": torch.tensor([0, 4, 2])}
    total = objective("class").loss_sum
    loss = [total(nn.Identity(), batch | {"pixels": x}) for x in (one, other)]
    want = sum(loss) / 2 + 0.7 * symmetric_kl(one, other)
    assert_close(total(nn.Identity(), batch | {"pixels_again": other}, 0.0, 0.7), want)
    assert_close(total(nn.Identity(), batch | {"pixels_again": other}), loss[0])  # not asked for


def test_symmetric_kl_is_weighted():
    p, q = torch.randn(2, 2, 3, 5)
    live = torch.tensor([[True, True, False], [False, True, False]])
    some = sum(symmetric_kl(p[at], q[at]) for at in ((0, 0), (0, 1), (1, 1)))
    assert_close(symmetric_kl(p, q, live), some)
    assert_close(symmetric_kl(p, q, live / 4), some / 4)


# ---- properties


@settings(max_examples=20)
@given(st.integers(1, 4), st.integers(2, 6), st.integers(0, 99))
def test_symmetric_kl_and_its_gradient_match_torch(rows, words, seed):
    generator = torch.Generator().manual_seed(seed)
    p, q = (torch.randn(rows, words, generator=generator).requires_grad_() for _ in range(2))
    a, b = p.log_softmax(-1), q.log_softmax(-1)
    there = F.kl_div(b, a, reduction="sum", log_target=True)
    back = F.kl_div(a, b, reduction="sum", log_target=True)
    want, got = (there + back) / 2, symmetric_kl(p, q)
    assert_close(got, want, rtol=1e-4, atol=1e-6)
    for mine, theirs in zip(*(torch.autograd.grad(x, (p, q)) for x in (got, want)), strict=True):
        assert_close(mine, theirs, rtol=1e-4, atol=1e-6)
    assert symmetric_kl(p, p).item() == 0


@pytest.mark.parametrize("name", CASES)
def test_without_dropout_rdrop_adds_nothing(name):
    model, batch = CASES[name][0]().eval(), CASES[name][1]()
    once, twice = (objective(name).loss_sum(model, batch, 0.1, rdrop) for rdrop in (0.0, 3.0))
    assert_close(twice, once, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_with_dropout_the_passes_differ_and_the_gradient_reaches_every_weight(name):
    model, batch = CASES[name][0]().train(), CASES[name][1]()

    def cost(rdrop):
        torch.manual_seed(3)
        return objective(name).loss_sum(model, batch, 0.0, rdrop)

    little, more, most = cost(1e-9), cost(1.0), cost(2.0)
    assert more > little
    assert_close(most - more, more - little, rtol=1e-3, atol=1e-4)  # in proportion
    most.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_rdrop_ignores_padding():
    model, batch = CASES["translation"][0]().train(), CASES["translation"][1]()
    other = dict(batch, target=batch["target"].clone())
    other["target"][1, 2:] = 8
    costs = []
    for one in (batch, other):
        torch.manual_seed(3)
        costs.append(objective("translation").loss_sum(model, one, 0.1, 2.0))
    assert_close(costs[0], costs[1])


def test_an_update_over_several_batches_counts_each_token_once():
    sizes = []
    for rdrop in (0.0, 1.0):
        trainer = make_trainer(steps=2, accumulate=2, rdrop=rdrop)
        trainer.run()
        sizes.append(trainer.last_update and trainer.last_update.size)
    assert sizes[0] == sizes[1] == 2 * 6 * 5


def test_a_training_with_rdrop_learns_and_resumes_bit_for_bit(tmp_path):
    chosen = {"steps": 40, "rdrop": 1.0, "lr": 1e-2}
    whole = make_trainer(tmp_path / "whole", **chosen)
    whole.run()
    assert whole.loss < 2.0  # from ln 8 = 2.1
    run_until(make_trainer(tmp_path / "parts", **chosen), 7)
    again = make_trainer(tmp_path / "parts", **chosen)
    torch.manual_seed(99)
    assert again.resume() == []
    again.run()
    one, two = copy_weights(whole.model), copy_weights(again.model)
    assert all(torch.equal(one[name], two[name]) for name in one)
    plain = make_trainer(**chosen | {"rdrop": 0.0})
    plain.run()
    assert plain.loss != whole.loss


CODE = """
import torch, regard as rg
layers = torch.nn.Flatten(), torch.nn.Linear(784, 3), torch.nn.Dropout(0.5)
model, graphs = torch.nn.Sequential(*layers), []
def keep(graph, inputs):
    return graphs.append(graph) or graph
rows = torch.zeros(6)
batch = {"pixels": torch.randn(6, 1, 28, 28), "label": rows.long()}
total = torch.compile(rg.train.objective("class").loss_sum, fullgraph=True, backend=keep)
total(model, batch, 0.1, 1.0).backward()
print(len(graphs))
"""


@pytest.mark.slow
def test_one_graph_holds_both_passes():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert done.stdout.split() == ["1"], done.stderr


# ---- errors


@pytest.mark.usefixtures("users_view")
def test_invalid_rdrop_raises():
    for bad in (-1.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match="rdrop: needs 0 or more, got"):
            TrainConfig(steps=1, rdrop=bad)
    model = CASES["translation"][0]()
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    config = TrainConfig(steps=1, rdrop=1.0, device="cpu")
    with pytest.raises(ConfigError, match=r"rdrop: needs a model with dropout.*try dropout=0\.1"):
        Trainer(model, objective("translation"), make_trainer().batches, config)
    model.encoder.blocks[0].self_attention.dropout = 0.1
    assert has_dropout(model)
