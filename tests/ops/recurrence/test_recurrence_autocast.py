"""Recurrence under autocast: half-precision products, states that stay near the float32 ones."""

import pytest
import torch
from torch.testing import assert_close

from regard.ops import GRUWeights, LSTMWeights, RNNWeights, recur

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
CELLS = {"rnn": (RNNWeights, 1), "gru": (GRUWeights, 3), "lstm": (LSTMWeights, 4)}


@pytest.mark.filterwarnings("ignore:RNN module weights")  # cuDNN compacts 16-bit ones itself
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("time", [1, 6])  # a single step goes its own way
@pytest.mark.parametrize("gates", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_autocast_changes_the_precision_and_nothing_else(cell, gates, time, device):
    kind, parts = CELLS[cell]
    hidden = 8
    w, u = (torch.randn(parts * hidden, hidden, device=device) / 3 for _ in range(2))
    x = torch.randn(2, time, hidden, device=device)
    state = tuple(torch.randn(2, hidden, device=device) for _ in kind(w, u).states)

    def run() -> tuple[torch.Tensor, torch.Tensor]:
        own = w.clone().requires_grad_()
        out = recur(x, kind(own, u), state, gates=gates)[0]
        return out.detach().float(), torch.autograd.grad(out.float().sum(), own)[0]

    want = run()
    with torch.autocast(device, dtype=torch.bfloat16):
        got = run()
    for mine, plain in zip(got, want, strict=True):
        assert_close(mine, plain, atol=0.06, rtol=0.06)
