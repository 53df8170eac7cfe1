"""Linear mixers: linear attention, state spaces and delta rules as one recurrence of a matrix."""

from regard.ops.mixers.forms import delta_rule, diagonal_recurrence, linear_attention, mamba2, mlstm
from regard.ops.mixers.linear_mixer import LinearMixer
from regard.ops.mixers.op import (
    MixerInfluence,
    MixerSurvey,
    MixResult,
    intercepting_mixers,
    mix,
    mix_influence,
    mix_influence_window,
    mix_state,
    mix_survey,
    mix_window,
)

__all__ = [
    "LinearMixer", "MixResult", "MixerInfluence", "MixerSurvey", "delta_rule",
    "diagonal_recurrence", "intercepting_mixers", "linear_attention", "mamba2", "mix",
    "mix_influence", "mix_influence_window", "mix_state", "mix_survey", "mix_window", "mlstm",
]  # fmt: skip
