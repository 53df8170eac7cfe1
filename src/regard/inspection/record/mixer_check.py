"""Recorded linear mixers against the output of the model."""

from collections.abc import Iterator
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from regard.inspection.sites.mixer_site import MixerSite
from regard.ops.autocast import is_autocast
from regard.ops.mixers import LinearMixer, MixResult, reference
from regard.ops.mixers.chunked import slice_heads
from regard.ops.mixers.op import compute_mix
from regard.ops.mixers.short_convolution import ShortConvolution

CHANNELS = 32  # that are computed again where each decays on its own, as one code does for all
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
            if out.shape[-1] == 1 and out.shape[1] > CHANNELS:  # each channel is a head
                some = slice(None, None, -(-out.shape[1] // CHANNELS))
                mixer, out = slice_heads(mixer, some), out[:, some]
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


def compare_mixer(
    site: MixerSite, edited: MixerSite, token: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """What a site computes, beside the same by the recurrence in float64, token by token.

    `edited` is the site of a run without the write of one token.
    """
    m: Any = site.mixer
    named = {f.name: getattr(m, f.name) for f in fields(m)}
    floats = {
        n: x.double() for n, x in named.items() if torch.is_tensor(x) and x.dtype.is_floating_point
    }
    m = replace(m, **floats)
    if isinstance(m, ShortConvolution):
        eye = torch.eye(m.time, dtype=m.x.dtype).repeat(len(m.taps), 1, 1)
        taps = m.taps.flip(-1)
        w = torch.zeros_like(eye)
        for i in range(m.width):
            w += taps[:, i, None, None] * eye.roll(i, 1).tril()
        e = w.abs() * m.x[..., None, :].abs()
        without = replace(m, x=m.x.index_fill(-1, torch.tensor(token), 0)).output()[..., None]
        yield site.out, m.output()[..., None]
    else:
        w, e = reference.weights(m), reference.effects(m)
        without = reference.mix(m.without_writes(token))[0]
        yield site.out, reference.mix(m)[0]
        yield site.state(), reference.states(m)[:, :, -1]
    survey, influence = site.survey(), site.influence()
    yield site.window(), w.expand_as(site.window())
    yield survey.mass, w.abs().sum(-1).expand_as(survey.mass)
    yield survey.received, w.abs().sum(-2).expand_as(survey.received)
    yield influence.effect_of_key, e.sum(-2)
    yield influence.effect_on_query, e.sum(-1)
    yield edited.out, without
