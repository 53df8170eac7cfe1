"""The math: pure functions, no parameters. Heads are the last leading axis of q, k and v."""

from regard.ops import biases, masks
from regard.ops.attend import attend, attention_weights
from regard.ops.biases import ALiBi, Bias, Buckets, Relative, Toeplitz, alibi_slopes
from regard.ops.influence import Influence, influence, influence_window
from regard.ops.levelled import levelled
from regard.ops.log_mel import frame_sizes, log_mel, mel_filters, mel_frames
from regard.ops.masks import Causal, Chunked, Documents, Local, Mask, Padding
from regard.ops.norms import layer_norm, rms_norm
from regard.ops.patches import cut_patches, join_patches, patch_grid
from regard.ops.positions import (
    frequencies,
    lookup,
    resize_grid,
    rotary,
    sinusoidal,
    sinusoidal_shift,
)
from regard.ops.recurrence import (
    GRUStep,
    GRUWeights,
    LSTMStep,
    LSTMWeights,
    RNNStep,
    RNNWeights,
    Walk,
    gru_step,
    lstm_step,
    recur,
    rnn_step,
)
from regard.ops.scores import additive, bilinear, dot, scaled_dot, score_moments
from regard.ops.softargmax import gumbel, softargmax, straight_through
from regard.ops.survey import Survey, survey
from regard.ops.terms import Terms
from regard.ops.window import window

__all__ = [
    "ALiBi",
    "Bias",
    "Buckets",
    "Causal",
    "Chunked",
    "Documents",
    "GRUStep",
    "GRUWeights",
    "Influence",
    "LSTMStep",
    "LSTMWeights",
    "Local",
    "Mask",
    "Padding",
    "RNNStep",
    "RNNWeights",
    "Relative",
    "Survey",
    "Terms",
    "Toeplitz",
    "Walk",
    "additive",
    "alibi_slopes",
    "attend",
    "attention_weights",
    "biases",
    "bilinear",
    "cut_patches",
    "dot",
    "frame_sizes",
    "frequencies",
    "gru_step",
    "gumbel",
    "influence",
    "influence_window",
    "join_patches",
    "layer_norm",
    "levelled",
    "log_mel",
    "lookup",
    "lstm_step",
    "masks",
    "mel_filters",
    "mel_frames",
    "patch_grid",
    "recur",
    "resize_grid",
    "rms_norm",
    "rnn_step",
    "rotary",
    "scaled_dot",
    "score_moments",
    "sinusoidal",
    "sinusoidal_shift",
    "softargmax",
    "straight_through",
    "survey",
    "window",
]
