"""Recorded linear mixers against the output of the model."""

from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor, nn

from regard.ops.autocast import is_autocast
from regard.ops.mixers import LinearMixer, MixResult
from regard.ops.mixers.op import compute_mix
from regard.ops.mixers.short_convolution import ShortConvolution

PROBES = 4  # random directions of the values, in which the output is computed again


def difference(
    mixer: LinearMixer | ShortConvolution, result: MixResult, precision: torch.dtype
) -> str:
    """Why a description does not reproduce the output of the model; empty if it does.

    W acts on each value alone, so a few random directions of them cost less and see any error.
    """
    out = result.out.detach().float()
    with torch.no_grad():
        if isinstance(mixer, ShortConvolution):
            got = mixer.output()[..., None].float()
        else:
            probes = _probes(out.shape[-1]).to(out.device)
            state = None if mixer.state is None else mixer.state @ probes
            got = compute_mix(replace(mixer, v=mixer.v.float() @ probes, state=state)).out
            out = out @ probes
        size = out.abs().max() if out.numel() else out.new_ones(())
        error = float((got - out).abs().max() / size.clamp(min=1e-30)) if out.numel() else 0.0
    bound = max(1e-4, 8 * torch.finfo(precision).eps)
    if error <= bound:
        return ""
    return f"its output differs from the recorded mixer by {error:.1e}, more than {bound:.0e}"


def least_precision(module: nn.Module, out: Tensor) -> torch.dtype:
    """The dtype of a module with the least precision."""
    dtypes = [out.dtype, *(p.dtype for p in module.parameters() if p.is_floating_point())]
    if is_autocast(out):
        dtypes.append(torch.get_autocast_dtype(out.device.type))
    return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)


def through_mixer(mixer: LinearMixer, result: MixResult) -> MixResult:
    """The numbers of a result with the graph of the mixer, which its quantities are part of."""
    own = compute_mix(mixer)
    out = result.out.detach() + (own.out - own.out.detach()).to(result.out.dtype)
    return result._replace(out=out)


@lru_cache
def _probes(values: int) -> Tensor:
    if values <= PROBES:
        return torch.eye(values)
    signs = torch.randint(0, 2, (values, PROBES), generator=torch.Generator().manual_seed(0))
    return (2 * signs - 1) / values**0.5
