"""The speech encoder matches Whisper's."""

import pytest
import torch
from torch.testing import assert_close
from transformers import WhisperConfig, WhisperModel
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from regard.errors import ConfigError, ShapeError
from regard.models import SpeechEncoder, SpeechEncoderConfig, from_transformers

SIZES = {
    "d_model": 16,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_layers": 1,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 8,
    "num_mel_bins": 5,
    "max_source_positions": 20,
    "init_std": 0.3,
}


def theirs() -> WhisperEncoder:
    model = WhisperEncoder(WhisperConfig(**SIZES)).eval()
    for p in model.parameters():
        if p.requires_grad:
            torch.nn.init.normal_(p, std=0.4)
    return model


def converted(model: WhisperEncoder | WhisperModel) -> SpeechEncoder:
    ours = from_transformers(model.state_dict(), model.config.to_dict())
    assert isinstance(ours, SpeechEncoder)
    return ours


def test_same_outputs_and_gradients_as_transformers():
    model, x = theirs(), torch.randn(2, 40, 5)
    ours = converted(model)
    want, got = model(x.mT).last_hidden_state, ours(x)
    assert_close(got, want, atol=1e-5, rtol=1e-5)
    (want * x[:, ::2, :1]).sum().backward()
    (got * x[:, ::2, :1]).sum().backward()
    grad = ours.subsample.convolutions[0].weight.grad
    assert_close(grad, model.conv1.weight.grad, atol=1e-4, rtol=1e-4)


def test_our_own_position_codes_are_whispers():
    model = WhisperEncoder(WhisperConfig(**SIZES))
    ours = SpeechEncoder(converted(model).config)
    assert_close(ours.positions, model.embed_positions.weight.data, atol=1e-6, rtol=1e-6)


def test_the_encoder_is_found_inside_a_whole_whisper():
    whole = WhisperModel(WhisperConfig(**SIZES)).eval()
    x = torch.randn(1, 40, 5)
    want = whole.encoder(x.mT).last_hidden_state
    assert_close(converted(whole)(x), want, atol=1e-5, rtol=1e-5)


def test_padding_changes_nothing():
    ours, x = converted(theirs()), torch.randn(1, 30, 5)
    alone = ours(x[:, :17])
    assert_close(ours(x, torch.tensor([17]))[:, :9], alone, atol=1e-5, rtol=1e-5)


def test_errors_name_the_numbers(users_view):
    ours = converted(theirs())
    with pytest.raises(ShapeError, match="positions: needs at most 19, .* got 20"):
        ours(torch.randn(1, 41, 5))
    with pytest.raises(ShapeError, match="features: needs n_mels=5 values per frame, got 6"):
        ours(torch.randn(1, 40, 6))
    with pytest.raises(ConfigError, match="dim: needs a multiple of heads=3, got 16"):
        SpeechEncoderConfig(dim=16, layers=1, heads=3)
    with pytest.raises(ConfigError, match="dim: needs an even number of 4 or more, got 2"):
        SpeechEncoderConfig(dim=2, layers=1, heads=1)
