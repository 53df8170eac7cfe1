"""Gradient norms by hand, against autograd, and the claims of the textbook."""

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import regard as rg
from regard import models
from regard.errors import LookError


def set_rnn(layer, w, u):
    with torch.no_grad():
        layer.cells[0].w.copy_(w)
        layer.cells[0].u.copy_(u)


def through(kind, gain, time, hidden=16):
    layer = rg.nn.Recurrent(hidden, hidden, kind=kind).double()
    with torch.no_grad():
        layer.cells[0].u.mul_(gain)
    x, v = torch.randn(1, time, hidden).double(), torch.randn(hidden).double()
    return rg.inspection.gradient_norms(layer, lambda: layer(x)[0][0, -1] @ v)


def test_an_rnn_by_hand_multiplies_by_slope_times_u_at_each_step_back():
    layer = rg.nn.Recurrent(1, 1, kind="rnn").double()
    set_rnn(layer, torch.zeros(1, 1), torch.full((1, 1), 0.5))
    x = torch.zeros(1, 4, 1).double()  # all states 0, where tanh has slope 1
    found = rg.inspection.gradient_norms(layer, lambda: layer(x)[0][0, -1, 0])
    assert_close(found.time["0"].h, torch.tensor([[0.125, 0.25, 0.5, 1.0]]).double())
    assert found.time["0"].rate == pytest.approx(0.5)
    assert found.time["0"].c is None


def test_the_gradient_to_each_state_is_the_product_of_jacobians():
    layer = rg.nn.Recurrent(3, 4, kind="gru").double()
    x, v = torch.randn(1, 6, 3).double(), torch.randn(4).double()
    found = rg.inspection.gradient_norms(layer, lambda: layer(x)[0][0, -1] @ v)
    out, cell, back = layer(x)[0][0], layer.cells[0], v
    for t in range(5, -1, -1):
        assert found.time["0"].h[0, t].item() == pytest.approx(back.norm().item())
        if t:
            step = lambda h, t=t: cell(x[0, t], (h,)).h  # noqa: E731
            back = torch.autograd.functional.jacobian(step, out[t - 1]).T @ back


def test_cell_gradients_are_whole_they_give_the_gradient_of_the_candidates_weights():
    # ∂J/∂W_c = Σ_t (∂J/∂C_t ∘ i_t ∘ (1 - c̃_t²)) x_tᵀ, of one unit so that norms have no direction
    layer = rg.nn.Recurrent(1, 1, kind="lstm").double()
    x = torch.rand(1, 9, 1).double()  # positive, so every ∂J/∂C_t has one sign
    with torch.no_grad():
        layer.cells[0].u.abs_()
    found = rg.inspection.gradient_norms(layer, lambda: layer(x)[0].sum())
    [gates] = layer.gates(x)
    local = gates.i * (1 - gates.candidate**2)
    want = (found.time["0"].c[..., None] * local * x).sum()
    grad = torch.autograd.grad(layer(x)[0].sum(), layer.cells[0].w)[0][3]
    assert_close(want[None], grad.abs())


def test_one_block_by_hand():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(2) * 3)
        model[1].weight.copy_(torch.eye(2) * 4)
    found = rg.inspection.gradient_norms(model, lambda: model(torch.tensor([[1.0, 0.0]]))[0, 0])
    assert found.depth == {"": [12.0, 4.0, 1.0]}
    assert found.weights == {"0.weight": 4.0, "1.weight": 3.0}
    assert found.flags == []


@pytest.mark.parametrize(("kind", "bound"), [("rnn", 1e-6), ("gru", 1e-3), ("lstm", 1.0)])
def test_small_recurrent_weights_make_the_gradient_vanish_and_it_is_flagged(kind, bound):
    found = through(kind, gain=0.5, time=50)
    assert found.time["0"].ratio < bound
    assert [flag.kind for flag in found.flags] == ["vanishing"]
    assert "0 through time: vanishing" in str(found)


def test_explosion_is_flagged_and_an_lstm_is_not_spared():
    rnn = rg.nn.Recurrent(8, 8, kind="rnn").double()
    set_rnn(rnn, torch.zeros(8, 8), 2 * torch.eye(8))
    with torch.no_grad():
        rnn.cells[0].w_bias.zero_()
    x = torch.zeros(1, 30, 8).double()
    found = rg.inspection.gradient_norms(rnn, lambda: rnn(x)[0][0, -1].sum())
    [flag] = found.flags
    assert (flag.where, flag.kind) == ("0 through time", "exploding")
    assert flag.ratio == pytest.approx(2.0**29)
    torch.manual_seed(0)  # weights that explode: with others the same gain closes the gates
    assert [flag.kind for flag in through("lstm", gain=10.0, time=200).flags] == ["exploding"]


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"norm": "none", "skip": False}, "vanishing"),
        ({"norm": "none", "skip": True}, "exploding"),
        ({"norm_first": True}, None),
        ({"norm_first": False}, None),
    ],
)
def test_residuals_stop_vanishing_but_need_a_norm_not_to_explode(options, kind):
    torch.manual_seed(1)
    stack = rg.nn.Encoder(24, 16, 2, final_norm=False, **options)
    x = torch.randn(1, 8, 16)
    found = rg.inspection.gradient_norms(stack, lambda: (stack(x) * torch.randn(8, 16)).sum())
    assert len(found.depth["blocks"]) == 25
    assert [flag.kind for flag in found.flags] == ([kind] if kind else [])


def test_padding_has_no_gradient_and_the_backward_direction_runs_from_the_right():
    layer = rg.nn.Recurrent(3, 4, bidirectional=True)
    x, lengths = torch.randn(2, 6, 3), torch.tensor([6, 4])
    found = rg.inspection.gradient_norms(layer, lambda: layer(x, lengths=lengths)[0][:, 0].sum())
    forward, back = found.time["0"].h, found.time["0.back"].h
    assert (forward[:, 1:] == 0).all()  # what is read at 0 has come from there alone
    assert_close(back[:, 0], torch.full((2,), 2.0))  # its last step, read by the loss: (1, 1, 1, 1)
    assert (back[0] > 0).all()
    assert (back[1, :4] > 0).all()
    assert (back[1, 4:] == 0).all()


def test_a_cell_that_reads_from_the_right_fades_to_the_right():
    layer = rg.nn.Recurrent(4, 4, kind="rnn", bidirectional=True)
    with torch.no_grad():
        for cell in layer.cells:
            cell.u.mul_(0.5)
    x = torch.randn(2, 40, 4)
    found = rg.inspection.gradient_norms(
        layer, lambda: layer(x)[0][:, 0].sum() + layer(x)[0][:, -1].sum()
    )
    assert found.time["0.back"].reverse
    for lengths in (None, torch.tensor([30, 35])):
        found = rg.inspection.gradient_norms(
            layer, lambda at=lengths: layer(x, lengths=at)[0][:, 0, 4:].sum()
        )
        flags = [(flag.where, flag.kind) for flag in found.flags]
        assert flags == [("0.back through time", "vanishing")]  # and none for what nobody read
        assert 0 < found.time["0.back"].ratio < 1e-6


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_torch_modules_flow_like_ours(kind):
    theirs = kind(3, 4, num_layers=2).double()
    ours = rg.nn.from_torch(theirs)
    x = torch.randn(5, 2, 3).double()
    a = rg.inspection.gradient_norms(theirs, lambda: theirs(x)[0][-1].square().sum())
    b = rg.inspection.gradient_norms(ours, lambda: ours(x.transpose(0, 1))[0][:, -1].square().sum())
    assert a.loss == pytest.approx(b.loss)
    for name in ("0", "1"):
        assert_close(a.time[name].h, b.time[name].h)
    assert a.weights["weight_ih_l0"] == pytest.approx(b.weights["cells.0.w"])


def test_torch_cells_called_in_a_loop_are_one_walk():
    cell = nn.LSTMCell(2, 3)
    x = torch.randn(4, 1, 2)

    def loss():
        state = None
        for x_t in x:
            state = cell(x_t, state)
        return state[0].sum()

    found = rg.inspection.gradient_norms(cell, loss)
    assert found.time["cell"].c.shape == (1, 4)
    assert (found.time["cell"].c > 0).all()


def test_translators_have_depth_and_time_and_grad_is_unchanged():
    source, target = torch.arange(5)[None], torch.arange(4)[None]
    translator = models.Translator(models.translator_tiny(vocab=9)).eval()
    found = rg.inspection.gradient_norms(
        translator, lambda: translator(source, target).square().mean()
    )
    assert {name: len(norms) for name, norms in found.depth.items()} == {
        "encoder.blocks": 3,
        "decoder.blocks": 3,
    }
    assert all(p.grad is None for p in translator.parameters())
    want = dict(translator.named_parameters())
    translator(source, target).square().mean().backward()
    for name, p in want.items():
        assert found.weights[name] == pytest.approx(p.grad.norm().item(), rel=1e-4)
    recurrent = models.RecurrentTranslator(models.recurrent_tiny(vocab=9, attention="hybrid"))
    found = rg.inspection.gradient_norms(
        recurrent.eval(), lambda: recurrent(source, target).square().mean()
    )
    assert found.time["encoder.0"].h.shape == (1, 5)
    assert found.time["decoder.core.0"].h.shape == (1, 4)


def test_a_transformers_model_shows_its_depth():
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=9, n_embd=8, n_layer=3, n_head=2, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config).eval()
    tokens = torch.arange(6)[None]
    found = rg.inspection.gradient_norms(model, lambda: model(tokens, labels=tokens).loss)
    assert len(found.depth["transformer.h"]) == 4
    assert found.flags == []


def test_a_loss_already_computed_gives_weight_gradients_and_stays_usable():
    model = nn.Linear(1, 1, bias=False)
    loss = model(torch.full((1, 1), 2.0)).sum()
    found = rg.inspection.gradient_norms(model, loss)
    assert found.weights == {"weight": 2.0}
    assert "function" in found.skipped["depth and time"]
    loss.backward()


def test_a_broken_number_is_flagged_by_name():
    model = nn.Sequential(nn.Linear(1, 1))
    found = rg.inspection.gradient_norms(model, lambda: model(torch.full((1, 1), math.inf)).sum())
    assert "not finite" in {flag.kind for flag in found.flags}


@pytest.mark.usefixtures("users_view")
def test_errors_suggest_a_fix():
    model = nn.Linear(2, 2)
    with pytest.raises(LookError, match=r"needs a scalar tensor, got \(1, 2\); try .mean"):
        rg.inspection.gradient_norms(model, lambda: model(torch.zeros(1, 2)))
    with pytest.raises(LookError, match="got a detached tensor"):
        rg.inspection.gradient_norms(model, lambda: torch.zeros(()))
