"""Features of speech: log-mel spectra and their online normalisation."""

from regard.ops.audio.log_mel import frame_sizes, log_mel, mel_filters, mel_frame_count
from regard.ops.audio.online_cmvn import online_cmvn

__all__ = ["frame_sizes", "log_mel", "mel_filters", "mel_frame_count", "online_cmvn"]
