"""Edits of linear mixers: scale or freeze decay and write strength, drop writes, edit the state."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from regard.errors import LookError, ShapeError
from regard.inspection.adapters.module_tracker import Caller
from regard.inspection.edits.base import (
    Edit,
    Indices,
    MixerFunction,
    MixerProceed,
    Selection,
    as_indices,
    as_selection,
    check_finite,
    index_mask,
    resolve_heads,
)
from regard.inspection.edits.registry import Range, register_edit
from regard.inspection.record.sight import Sight
from regard.inspection.sites.mixer_site import MixerSite
from regard.ops.mixers import LinearMixer, MixResult
from regard.ops.mixers.chunked import slice_tokens
from regard.ops.mixers.short_convolution import ShortConvolution

Mixer = LinearMixer | ShortConvolution


@register_edit(factor=Range(0, 4, 1), formula="a_t → a_tᶠ")
def scale_decay(mixer: str, factor: float, *, heads: Selection = None) -> Edit:
    """Multiply the logarithm of the decay: 0 forgets nothing, above 1 forgets faster.

    a_t = e^{g_t} → e^{factor · g_t}

    >>> one = torch.ones(1, 1, 2, 1)
    >>> m = rg.ops.mixers.LinearMixer(q=one, k=one, v=one, log_decay=torch.full((1, 1, 2), -9.0))
    >>> with rg.ops.mixers.intercepting_mixers(rg.edit.scale_decay("*", 0.0).edit_mixer):
    ...     rg.ops.mixers.mix(m).out.flatten()
    tensor([1., 2.])
    """
    check_finite("factor", factor, 0)
    return _gate_edit("scale_decay", "log_decay", mixer, heads, lambda m: factor * m.decays)


@register_edit(decay=Range(0, 1, 1), formula="a_t → a")
def freeze_decay(mixer: str, decay: float, *, heads: Selection = None) -> Edit:
    """Keep the same share of the state at every token: forgetting no longer depends on the input.

    a_t → decay, from 0 up to 1, which forgets nothing
    """
    check_finite("decay", decay, 0)
    if decay > 1:
        raise ShapeError(f"decay: needs 0 to 1, got {decay}; try scale_decay")
    log = torch.tensor(decay).log().clamp(min=LOG_ZERO).item()
    return _gate_edit(
        "freeze_decay", "log_decay", mixer, heads, lambda m: torch.full_like(m.decays, log)
    )


@register_edit(factor=Range(-2, 4, 1), formula="β_t → f β_t")
def scale_write(mixer: str, factor: float, *, heads: Selection = None) -> Edit:
    """Multiply the write strength β_t of every token; of a state space the step size it writes by.

    The decay stays.
    """
    check_finite("factor", factor)
    return _gate_edit("scale_write", "beta", mixer, heads, lambda m: factor * m.writes)


@register_edit(beta=Range(0, 2, 1), formula="β_t → β")
def freeze_write(mixer: str, beta: float, *, heads: Selection = None) -> Edit:
    """Write every token with the same strength β: writing no longer depends on the input."""
    check_finite("beta", beta, 0)
    return _gate_edit(
        "freeze_write", "beta", mixer, heads, lambda m: torch.full_like(m.writes, beta)
    )


@register_edit(formula="Δy_t = -w_tj r_j")
def drop_write(mixer: str, tokens: Indices, *, heads: Selection = None) -> Edit:
    """Do not write some tokens: β_j = 0. Of a convolution, leave out their values.

    Tokens count from the start of the text. They still read and decay the state.

    >>> one = torch.ones(1, 1, 2, 1)
    >>> m = rg.ops.mixers.LinearMixer(q=one, k=one, v=one, log_decay=None)
    >>> with rg.ops.mixers.intercepting_mixers(rg.edit.drop_write("*", 0).edit_mixer):
    ...     rg.ops.mixers.mix(m).out.flatten()
    tensor([0., 1.])
    """
    dropped, chosen = as_indices("tokens", tokens), as_selection("heads", heads)

    def apply(m: Mixer, proceed: MixerProceed, caller: Caller, first: int) -> MixResult:
        if isinstance(m, ShortConvolution):
            return proceed(_without_values(m, dropped, chosen, first))
        edited = _where(_token_mask(dropped, m, first), chosen, m)
        return proceed(replace(m, beta=m.writes.masked_fill(edited, 0)))

    return Edit(mixer, "", None, max(dropped), apply)


@register_edit(formula="S_{t-1} → 0")
def reset_state(mixer: str, tokens: Indices) -> Edit:
    """Clear the state before some tokens: they and later ones read nothing of what came before.

    >>> one = torch.ones(1, 1, 2, 1)
    >>> m = rg.ops.mixers.LinearMixer(q=one, k=one, v=one, log_decay=None)
    >>> with rg.ops.mixers.intercepting_mixers(rg.edit.reset_state("*", 1).edit_mixer):
    ...     rg.ops.mixers.mix(m).out.flatten()
    tensor([1., 1.])
    """
    chosen = as_indices("tokens", tokens)

    def apply(m: LinearMixer, proceed: MixerProceed, caller: Caller, first: int) -> MixResult:
        resets = _token_mask(chosen, m, first).expand(m.v.shape[0], -1)
        return proceed(replace(m, resets=resets if m.resets is None else resets | m.resets))

    return Edit(mixer, "", None, max(chosen), _of_state(apply))


@register_edit(formula="S_t → S'_t")
def patch_state(mixer: str, source: Sight | MixerSite, token: int) -> Edit:
    """Replace the state after a token by that of another run, after as many of its tokens.

    Args:
        mixer: Glob over the names or paths of linear mixers.
        source: A `Sight`, from which each mixer takes its state, or a `MixerSite` for all.
        token: The token, counted from the start of the text; later ones go on from that state.

    >>> one = torch.ones(1, 1, 2, 1)
    >>> m = rg.ops.mixers.LinearMixer(q=one, k=one, v=one, log_decay=None)
    >>> other = replace(m, v=9 * one)
    >>> site = rg.inspection.MixerSite(name="mixer", path="mixer", mixer=other, out=one)
    >>> with rg.ops.mixers.intercepting_mixers(rg.edit.patch_state("*", site, 0).edit_mixer):
    ...     rg.ops.mixers.mix(m).out.flatten()
    tensor([ 1., 10.])
    """
    (at,) = as_indices("token", token)
    if not isinstance(source, Sight | MixerSite):
        raise LookError(
            f"source: needs a sight or a linear mixer of another run, got a "
            f"{type(source).__name__}; try with rg.look(model) as sight: model(…)"
        )

    def apply(m: LinearMixer, proceed: MixerProceed, caller: Caller, first: int) -> MixResult:
        if not 0 <= (end := at - first + 1) <= m.time or not end:
            return proceed(m)
        site = source if isinstance(source, MixerSite) else source.calls(caller.name)[-1]
        state = site.state(at).to(m.v)
        if state.shape[1:] != (m.v.shape[1], m.q.shape[-1], m.v.shape[-1]):
            raise ShapeError(f"source: needs the state of this mixer, got {tuple(state.shape)}")
        state = state.expand(m.v.shape[0], -1, -1, -1)
        before = proceed(slice_tokens(m, range(end), m.state))
        if end == m.time:
            return before._replace(state=state)
        after = proceed(slice_tokens(m, range(end, m.time), state))
        return MixResult(torch.cat([before.out, after.out], 2), after.state)

    return Edit(mixer, "", None, at, _of_state(apply))


LOG_ZERO = -1e4  # a decay to nothing, of which differences are finite


def _gate_edit(
    name: str, field: str, mixer: str, heads: Selection,
    change: Callable[[LinearMixer], Tensor],
) -> Edit:  # fmt: skip
    """An edit of the decay or of the write strength of every token, in some heads or in all."""
    chosen = as_selection("heads", heads)

    def apply(m: Mixer, proceed: MixerProceed, caller: Caller, first: int) -> MixResult:
        if isinstance(m, ShortConvolution) or (name == "scale_decay" and m.log_decay is None):
            got = "a convolution" if isinstance(m, ShortConvolution) else "a mixer without decay"
            raise LookError(f"mixer: needs a gate for {name}, got {caller.name}, {got}")
        new, old = change(m), m.decays if field == "log_decay" else m.writes
        edited = _where(None, chosen, m)
        new = torch.where(edited[..., None] if new.ndim == 4 else edited, new, old)
        if field == "log_decay" and (m.log_decay is None or m.log_decay.ndim == 3):
            new = new[..., 0]
        return proceed(replace(m, **{field: new}))

    return Edit(mixer, "", None, -1, apply)


def _of_state(apply: MixerFunction) -> MixerFunction:
    def checked(m: Mixer, proceed: MixerProceed, caller: Caller, first: int) -> MixResult:
        if isinstance(m, ShortConvolution):
            raise LookError(f"mixer: needs a state, got {caller.name}, a convolution")
        return apply(m, proceed, caller, first)

    return checked


def _token_mask(tokens: Sequence[int], m: Mixer, first: int) -> Tensor:
    """Where this call has the tokens, which count from the start of the text."""
    like = m.x if isinstance(m, ShortConvolution) else m.v
    return index_mask([t - first for t in tokens if t >= first], m.time, like)


def _where(tokens: Tensor | None, heads: Sequence[int] | None, m: LinearMixer) -> Tensor:
    """Mask over (head, time) of what an edit changes."""
    count = m.v.shape[1]
    chosen = index_mask(resolve_heads(heads, count), count, m.v)[:, None]
    return chosen.expand(-1, m.time) if tokens is None else chosen & tokens


def _without_values(
    m: ShortConvolution, tokens: Sequence[int], heads: Sequence[int] | None, first: int
) -> ShortConvolution:
    """The convolution with some values 0, among those that came before this call too."""
    count = m.x.shape[1]
    chosen = index_mask(resolve_heads(heads, count), count, m.x)[:, None]
    x = m.x.masked_fill(chosen & _token_mask(tokens, m, first), 0)
    if m.state is None:
        return replace(m, x=x)
    start = first - m.state.shape[-1]
    earlier = [t - start for t in tokens if start <= t < first]
    return replace(
        m, x=x, state=m.state.masked_fill(chosen & index_mask(earlier, m.state.shape[-1], x), 0)
    )
