"""Gates over time equal `Recurrent.gates`, for cells of regard and torch; outputs do not change."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.testing import assert_close

import regard as rg
from regard import models
from regard.errors import ConfigError, LookError, ShapeError
from regard.ops.recurrence import GRUStep, LSTMStep, RNNStep


def test_the_kept_share_is_the_product_of_the_later_forget_gates():
    f = torch.tensor([0.9, 0.5, 0.25]).view(1, 3, 1)
    assert_close(
        rg.inspection.memory_retention(LSTMStep(f, f, f, f, f, f)).flatten(),
        torch.tensor([0.125, 0.25, 1.0]),
    )
    z = 1 - f
    assert_close(
        rg.inspection.memory_retention(GRUStep(z, z, z, z)).flatten(),
        torch.tensor([0.125, 0.25, 1.0]),
    )
    steady = torch.full((1, 101, 1), 0.99, dtype=torch.float64)
    assert rg.inspection.memory_retention(LSTMStep(*[steady] * 6))[0, 0, 0].item() == pytest.approx(
        0.366, abs=1e-3
    )


@pytest.mark.parametrize("kind", ["rnn", "gru", "lstm"])
def test_gates_match_trace_and_outputs_stay_bit_identical(kind):
    layer = rg.nn.Recurrent(3, 4, kind=kind, layers=2, bidirectional=True)
    x, lengths = torch.randn(2, 7, 3), torch.tensor([7, 4])
    bare = layer(x, lengths=lengths)[0]
    with rg.inspection.record_gates(layer) as seen:
        out = layer(x, lengths=lengths)[0]
    assert torch.equal(out, bare)
    assert list(seen) == ["0", "0.back", "1", "1.back"]
    for step, want in zip(seen.values(), layer.gates(x, lengths=lengths), strict=True):
        assert_close(tuple(step), tuple(want))
        assert not step.h.requires_grad


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_torch_modules_are_recorded_in_every_layout(kind):
    theirs = kind(3, 4, num_layers=2, bidirectional=True, batch_first=True)
    ours = rg.nn.from_torch(theirs)
    x, lengths = torch.randn(2, 6, 3), torch.tensor([6, 3])
    packed = pack_padded_sequence(x, lengths, batch_first=True)
    want = ours.gates(x, lengths=lengths)
    with rg.inspection.record_gates(nn.ModuleDict({"rnn": theirs})) as seen:
        theirs(packed)
    assert list(seen) == ["rnn.0", "rnn.0.back", "rnn.1", "rnn.1.back"]
    for step, other in zip(seen.values(), want, strict=True):
        assert_close(tuple(step), tuple(other))
    with rg.inspection.record_gates(theirs) as alone:
        theirs(x[0])
    assert_close(alone["0"].h, ours.gates(x[:1])[0].h)


def test_cells_called_one_by_one_are_joined_along_time():
    cell, x = nn.LSTMCell(3, 4), torch.randn(5, 2, 3)
    state = None
    with rg.inspection.record_gates(cell) as seen:
        for x_t in x:
            state = cell(x_t, state)
    assert seen["cell"].f.shape == (2, 5, 4)
    assert len(seen.calls["cell"]) == 5
    assert_close(seen["cell"].h[:, -1], state[0])


@pytest.mark.parametrize("attention", ["none", "bahdanau", "luong", "hybrid"])
def test_encoder_and_decoder_of_recurrent_translators_are_recorded(attention):
    model = models.RecurrentTranslator(models.recurrent_tiny(vocab=9, attention=attention)).eval()
    source, target = torch.arange(5)[None], torch.arange(3)[None]
    with rg.inspection.record_gates(model) as seen, torch.no_grad():
        model(source, target)
    back = [] if attention == "hybrid" else ["encoder.0.back"]
    assert list(seen) == ["encoder.0", *back, "decoder.core.0"]
    assert seen["encoder.0"].h.shape[1] == 5
    assert seen["decoder.core.0"].z.shape[1] == 3
    with rg.inspection.record_gates(model, at="decoder.*") as part:
        model(source, target)
    assert list(part) == ["decoder.core.0"]


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_unsupported_modules_raise():
    model = nn.ModuleDict(
        {
            "relu": nn.RNN(2, 2, nonlinearity="relu"),
            "proj": nn.LSTM(2, 4, proj_size=2),
            "drop": nn.GRU(2, 2, num_layers=2, dropout=0.5),
        }
    )
    with rg.inspection.record_gates(model) as seen:
        for module in model.values():
            module(torch.zeros(3, 1, 2))
    assert not seen
    assert "relu" in seen.skipped["relu"]
    assert "proj_size=2" in seen.skipped["proj"]
    assert "eval()" in seen.skipped["drop"]


@pytest.mark.usefixtures("users_view")
def test_errors_suggest_a_fix():
    layer = rg.nn.Recurrent(3, 4)
    with rg.inspection.record_gates(layer) as seen:
        layer(torch.randn(1, 2, 3))
        layer(torch.randn(2, 2, 3))
    with pytest.raises(ConfigError, match="name: needs one of 0, got 'nought'"):
        seen["nought"]
    with pytest.raises(ShapeError, match=r"got \[1, 2\]; try calls"):
        seen["0"]
    with pytest.raises(ConfigError, match="got RNNStep"):
        rg.inspection.memory_retention(RNNStep(torch.zeros(1, 1, 1)))
    layer._orig_mod = nn.Identity()  # as torch.compile leaves it
    with pytest.raises(LookError, match="without torch.compile"), rg.inspection.record_gates(layer):
        pass
