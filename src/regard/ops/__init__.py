"""The math: pure functions without parameters. Heads are the last leading axis of q, k and v."""

from regard.ops import biases, masks, mixers
from regard.ops.attend import attend, attention_weights, window
from regard.ops.audio import frame_sizes, log_mel, mel_filters, mel_frame_count, online_cmvn
from regard.ops.biases import ALiBi, Bias, Buckets, RelativeKeys, Toeplitz, alibi_slopes
from regard.ops.crf import (
    TagChain,
    crf_decode,
    crf_log_likelihood,
    crf_log_partition,
    crf_marginals,
)
from regard.ops.influence import Influence, influence, influence_window
from regard.ops.masks import Causal, Chunked, Documents, Local, Mask, Padding
from regard.ops.norms import layer_norm, rms_norm
from regard.ops.patches import patch_grid, patchify, unpatchify
from regard.ops.positions import (
    RopeScaling,
    apply_rope,
    frequencies,
    interpolate_positions,
    lookup_positions,
    sinusoidal,
    sinusoidal_shift,
)
from regard.ops.recurrence import (
    GRUStep,
    GRUWeights,
    LSTMStep,
    LSTMWeights,
    RecurrenceResult,
    RNNStep,
    RNNWeights,
    gru_step,
    lstm_step,
    recur,
    rnn_step,
)
from regard.ops.scores import (
    additive,
    bilinear,
    dot,
    gumbel_softmax,
    scaled_dot,
    score_moments,
    softargmax,
    straight_through,
)
from regard.ops.survey import Survey, survey
from regard.ops.terms import Terms

__all__ = [
    "ALiBi", "Bias", "Buckets", "Causal", "Chunked", "Documents", "GRUStep", "GRUWeights",
    "Influence", "LSTMStep", "LSTMWeights", "Local", "Mask", "Padding", "RNNStep", "RNNWeights",
    "RecurrenceResult", "RelativeKeys", "RopeScaling", "Survey", "TagChain", "Terms", "Toeplitz",
    "additive", "alibi_slopes", "apply_rope", "attend", "attention_weights", "biases", "bilinear",
    "crf_decode", "crf_log_likelihood", "crf_log_partition", "crf_marginals", "dot",
    "frame_sizes", "frequencies", "gru_step", "gumbel_softmax", "influence", "influence_window",
    "interpolate_positions", "layer_norm", "log_mel", "lookup_positions", "lstm_step", "masks",
    "mel_filters", "mel_frame_count", "mixers", "online_cmvn", "patch_grid", "patchify", "recur",
    "rms_norm", "rnn_step", "scaled_dot", "score_moments", "sinusoidal", "sinusoidal_shift",
    "softargmax", "straight_through", "survey", "unpatchify", "window",
]  # fmt: skip
