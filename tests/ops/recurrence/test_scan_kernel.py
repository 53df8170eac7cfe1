"""The linear scan kernel is the loop, forward and backward."""

import pytest
import torch
from torch.testing import assert_close

from regard.ops import LSTMStep, LSTMWeights, recur
from regard.ops.recurrence.fused import _cells

module = pytest.importorskip("regard.ops.recurrence.scan_kernel")


def draw(sequences, time, hidden, dtype=torch.float64):
    kept = torch.rand(sequences, time, hidden, dtype=dtype)
    new, first = torch.randn(sequences, time, hidden, dtype=dtype), torch.randn(sequences, hidden)
    return kept, new, first.to(dtype)


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (2, 4, 130)])  # more than a program has
def test_cells_by_the_kernel_are_those_of_the_loop(shape):
    given = draw(*shape)
    assert_close(module.linear_scan(*given), _cells(*given))


def test_their_gradients_are_right():
    given = [x.requires_grad_() for x in draw(2, 3, 4)]
    assert torch.autograd.gradcheck(module.linear_scan, given)


def test_half_precision_is_summed_in_float32():
    kept, new, first = draw(2, 60, 8, torch.float32)
    half = module.linear_scan(kept.half(), new.half(), first.half())
    want = _cells(kept.half().float(), new.half().float(), first.half().float())
    assert_close(half, want.half(), rtol=2e-3, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 2e-3), (torch.float64, 1e-9)])
def test_an_lstm_with_gates_on_a_gpu_is_the_reference(dtype, near):
    w, u, b = torch.randn(24, 4), torch.randn(24, 6), torch.randn(24)
    weights = LSTMWeights(*(x.to("cuda", dtype).requires_grad_() for x in (w, u, b)))
    x = torch.randn(3, 9, 4, device="cuda", dtype=dtype)
    lengths = torch.tensor([9, 0, 4], device="cuda")
    found = []
    for backend in ("gates", "reference"):
        walk = recur(x, weights, lengths=lengths, gates=True, backend=backend)
        assert isinstance(walk.gates, LSTMStep)
        slope = torch.autograd.grad(walk.out.square().sum() + walk.gates.c.sum(), weights.w)
        found.append([*walk.gates, walk.out, *slope])
    # cuDNN may cut float32 to TensorFloat-32 in its products
    assert_close(found[0], found[1], rtol=near, atol=near)
