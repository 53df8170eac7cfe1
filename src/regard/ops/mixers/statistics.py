"""The statistics of a linear mixer, each with its definition from the whole map and all states."""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import ShapeError
from regard.ops.maybe_none import MaybeNone
from regard.ops.mixers import reference
from regard.ops.mixers.linear_mixer import LinearMixer
from regard.tables import html_summary

STATE_STRIDE = 64  # states are measured after every 64th token and after the last


class WholeMixer:
    """A mixer with its whole map and every state, as the definitions need them."""

    def __init__(self, mixer: LinearMixer):
        self.mixer = mixer

    @cached_property
    def w(self) -> Tensor:
        """|W|."""
        return reference.weights(self.mixer).abs()

    @cached_property
    def distance(self) -> Tensor:
        """t - j, 0 above the diagonal."""
        t = torch.arange(self.mixer.time, device=self.mixer.device)
        return (t[:, None] - t).clamp(min=0).to(self.w.dtype)

    @cached_property
    def states(self) -> Tensor:
        """The measured states."""
        return reference.states(self.mixer)[:, :, sampled_tokens(self.mixer.time)]


def sampled_tokens(time: int) -> list[int]:
    """The tokens after which states are measured.

    >>> sampled_tokens(130)
    [63, 127, 129]
    """
    ends = [*range(STATE_STRIDE - 1, time, STATE_STRIDE)]
    return ends if not time or time % STATE_STRIDE == 0 else [*ends, time - 1]


def half_life(mixer: LinearMixer) -> Tensor:
    """ln 2 / -g_t, with the mean of g_t over key channels; inf where nothing is forgotten."""
    return math.log(2) / -mixer.decays.mean(-1)


def ratio(above: Tensor, below: Tensor) -> Tensor:
    """above / below, 0 where both are 0."""
    return torch.where(below == 0, 0, above / torch.where(below == 0, 1, below))


def surprise(written: Tensor, v: Tensor) -> Tensor:
    """‖r_j‖ / ‖v_j‖."""
    return ratio(written.norm(dim=-1), v.norm(dim=-1))


def state_rank(states: Tensor) -> Tensor:
    """(Σ σ²)² / Σ σ⁴ over the singular values: from 1 to the smaller side of the state."""
    gram = states.mT @ states
    return ratio(gram.diagonal(dim1=-2, dim2=-1).sum(-1) ** 2, gram.square().sum((-2, -1)))


def _statistic(meaning: str, formula: Callable[[WholeMixer], Tensor], axis: str = "query") -> Any:
    return field(default=None, metadata={"meaning": meaning, "formula": formula, "axis": axis})


@dataclass(frozen=True, kw_only=True)
class MixerSurvey:
    """Statistics of a linear mixer, one value per head and token; None where not requested.

    w_tj is the weight of value j in output t, which may be negative.

    >>> one = torch.ones(1, 1, 3, 1)
    >>> mixer = rg.ops.mixers.LinearMixer(q=one, k=one, v=one, log_decay=None)
    >>> rg.ops.mixers.mix_survey(mixer).reach.flatten()
    tensor([0.0000, 0.5000, 1.0000])
    """

    mass: Float[Tensor, "batch head query"] | MaybeNone = _statistic(
        "Σ_j |w_tj|", lambda m: m.w.sum(-1)
    )
    received: Float[Tensor, "batch head key"] | MaybeNone = _statistic(
        "Σ_t |w_tj|", lambda m: m.w.sum(-2), "key"
    )
    reach: Float[Tensor, "batch head query"] | MaybeNone = _statistic(
        "mean distance t - j, weighted by |w|",
        lambda m: ratio((m.w * m.distance).sum(-1), m.w.sum(-1)),
    )
    half_life: Float[Tensor, "batch head query"] | MaybeNone = _statistic(
        "tokens until half is forgotten, by the decay of token t", lambda m: half_life(m.mixer)
    )
    write: Float[Tensor, "batch head key"] | MaybeNone = _statistic(
        "β_j, the write strength", lambda m: m.mixer.writes, "key"
    )
    surprise: Float[Tensor, "batch head key"] | MaybeNone = _statistic(
        "‖r_j‖ / ‖v_j‖, the part of a value that the state did not predict",
        lambda m: surprise(reference.mix(m.mixer)[1], m.mixer.v),
        "key",
    )
    state_norm: Float[Tensor, "batch head sample"] | MaybeNone = _statistic(
        "‖S‖, after every 64th token and the last",
        lambda m: m.states.flatten(-2).norm(dim=-1),
        "sample",
    )
    state_rank: Float[Tensor, "batch head sample"] | MaybeNone = _statistic(
        "(Σ σ²)² / Σ σ⁴ over the singular values of S, after the same tokens",
        lambda m: state_rank(m.states),
        "sample",
    )

    def _repr_html_(self) -> str:
        return html_summary({name: x for name, x in vars(self).items() if x is not None})


# of each statistic: meaning, formula, and whether it has a value per query, key or sample
MIXER_STATISTICS = {f.name: f.metadata for f in fields(MixerSurvey)}


@dataclass(frozen=True, kw_only=True)
class MixerInfluence:
    """The exact effect of not writing a token: e_tj = |w_tj| ‖r_j‖, without the own term of w.

    >>> one = torch.ones(1, 1, 2, 1)
    >>> mixer = rg.ops.mixers.LinearMixer(q=one, k=one, v=2 * one, log_decay=None)
    >>> rg.ops.mixers.mix_influence(mixer).effect_of_key.flatten()
    tensor([4., 2.])
    """

    effect_on_query: Float[Tensor, "batch head query"]  # Σ_j e_tj
    effect_of_key: Float[Tensor, "batch head key"]  # Σ_t e_tj

    def _repr_html_(self) -> str:
        return html_summary(vars(self))


def check_mixer_statistics(statistics: Collection[str] | None) -> tuple[str, ...]:
    """The names of statistics, checked; None stands for all.

    >>> check_mixer_statistics("reach")
    ('reach',)
    """
    names = (statistics,) if isinstance(statistics, str) else statistics
    names = tuple(MIXER_STATISTICS if names is None else names)
    for name in names:
        if name not in MIXER_STATISTICS:
            known = ", ".join(MIXER_STATISTICS)
            raise ShapeError(f"statistics: needs names of {known}, got {name!r}")
    return names
