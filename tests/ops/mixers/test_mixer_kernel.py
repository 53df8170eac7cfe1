"""The kernel of a mixer's statistics, in Triton's interpreter and, marked gpu, on CUDA."""

from dataclasses import replace

import pytest
import torch
from mixer_cases import MIXERS
from torch.testing import assert_close

from regard.errors import BackendError
from regard.ops import mixers
from regard.ops.mixers import LinearMixer

pytest.importorskip("triton")
CASES = ["gated delta", "KDA", "packed", "Mamba-2", "RG-LRU"]
SUMS = ["mass", "received", "reach"]


def low(mixer: LinearMixer, device: str = "cpu") -> LinearMixer:
    moved = {n: x.to(device) for n, x in vars(mixer).items() if torch.is_tensor(x)}
    return replace(
        mixer, **{n: x.float() if x.is_floating_point() else x for n, x in moved.items()}
    )


def assert_kernel_is_the_sweep(mixer: LinearMixer) -> None:
    want, got = (
        mixers.mix_survey(mixer, statistics=SUMS, backend=b) for b in ("chunked", "kernel")
    )
    for name in SUMS:
        a, b = getattr(got, name), getattr(want, name)
        assert_close(a, b, atol=1e-5, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}")
    want, got = (mixers.mix_influence(mixer, backend=b) for b in ("chunked", "kernel"))
    for name, x in vars(want).items():
        assert_close(getattr(got, name), x, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("n", [40, 200])
def test_the_kernel_has_the_sums_of_the_sweep(name, n):
    mixer = low(MIXERS[name](n))
    names = {n: x[:1, :2] for n, x in vars(mixer).items() if torch.is_tensor(x) and n != "resets"}
    resets = None if mixer.resets is None else mixer.resets[:1]
    assert_kernel_is_the_sweep(replace(mixer, **names, resets=resets))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("name", MIXERS)
def test_on_cuda_the_kernel_has_the_sums_of_the_sweep(name):
    mixer = low(MIXERS[name](1500), "cuda")
    assert_kernel_is_the_sweep(mixer)
    assert_close(mixers.mix_survey(mixer).mass, mixers.mix_survey(low(mixer, "cpu")).mass.cuda())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("dim", [16, 64, 128, 256])
def test_on_cuda_heads_of_any_width_run(dim):
    q, k, v = (torch.randn(1, 2, 700, dim, device="cuda") for _ in range(3))
    k = torch.nn.functional.normalize(k, dim=-1)
    decay, beta = -0.01 * torch.rand(1, 2, 700).cuda(), torch.rand(1, 2, 700).cuda()
    assert_kernel_is_the_sweep(mixers.delta_rule(q, k, v, decay, beta))
    assert_kernel_is_the_sweep(mixers.delta_rule(q, k, v, decay[..., None] * k.abs(), beta))


@pytest.mark.usefixtures("users_view")
def test_what_the_kernel_does_not_compute_is_refused_by_name():
    mixer = MIXERS["delta"](3)
    with pytest.raises(BackendError, match="it computes in float32"):
        mixers.mix_survey(mixer, backend="kernel")
    with pytest.raises(BackendError, match="backend: needs auto, reference, chunked, got"):
        mixers.mix(mixer, backend="kernel")  # pyright: ignore[reportArgumentType]
