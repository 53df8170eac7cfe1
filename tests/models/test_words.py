"""The recogniser of single words: padding, silence and gain change nothing, and it learns."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from regard.data import CharTokenizer
from regard.decode import Transcriber
from regard.errors import ConfigError, ShapeError
from regard.models import WordRecogniser, WordRecogniserConfig, ctc_loss

CONFIG = WordRecogniserConfig(vocab=5, n_mels=8, width=8, sample_rate=8000)


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = WordRecogniser(CONFIG)
    frames = torch.randn(64, 40, 8)
    model(frames)  # running statistics other than 0 and 1
    return model.eval()


def test_padding_silence_and_gain_change_nothing(model):
    frames = torch.randn(3, 40, 8)
    lengths = torch.tensor([40, 17, 1])
    batch, ones = model(frames, lengths)
    assert ones.tolist() == [1, 1, 1]
    assert batch.shape == (3, 1, 5)
    for row, x, length in zip(batch, frames, lengths.tolist(), strict=True):
        assert_close(model(x[None, :length])[0][0], row)
        silence = torch.full((9, 8), -30.0)
        around = torch.cat([silence, x[:length], silence])[None] + 2.5
        assert_close(model(around)[0][0], row, atol=1e-5, rtol=1e-5)


def test_nothing_but_silence_and_no_frame_give_finite_outputs(model):
    assert model(torch.full((1, 9, 8), -23.0))[0].isfinite().all()
    assert model(torch.randn(2, 9, 8), torch.tensor([9, 0]))[0].isfinite().all()
    with pytest.raises(ShapeError, match="features: needs n_mels=8 values of 1 frame or more"):
        model(torch.zeros(1, 0, 8))


def test_the_loss_of_ctc_is_the_cross_entropy_of_the_word(model):
    log_probs, lengths = model(torch.randn(4, 20, 8))
    words = torch.tensor([[1], [2], [3], [4]])
    loss = ctc_loss(log_probs, lengths, words, torch.ones(4, dtype=torch.long))
    assert_close(loss, -log_probs[:, 0].gather(1, words).mean())


def test_a_stream_answers_at_its_end_as_the_recording_does(model):
    tokenizer = CharTokenizer.train(["abcd"])
    config = WordRecogniserConfig(vocab=tokenizer.vocab, n_mels=8, width=8, sample_rate=8000)
    words = WordRecogniser(config).eval()
    transcriber, wave = Transcriber(words, tokenizer), torch.randn(6000)
    transcriber.prepare([wave])
    assert [transcriber.push(piece) for piece in wave.split(1000)] == [""] * 6
    text = transcriber.finish()
    normalized = torch.cat(
        [(wave - wave.mean()) / (wave - wave.mean()).abs().max(), torch.zeros(8000)]
    )
    best = words.forward_waveform(normalized[None])[0][0, 0].argmax()
    assert text == tokenizer.decode([int(best)]).strip()
    with pytest.raises(ConfigError, match="recording: needs 60 s or less"):
        transcriber.push(torch.zeros(61 * 8000))


def test_an_invalid_size_is_refused():
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"vocab": 1}, "vocab: needs the blank and 1 word"),
        ({"width": 3}, "width: needs at least 4 to be halved 2 times"),
        ({"cmvn_depth": 0.0}, "cmvn_depth: needs more than 0"),
        ({"dropout": 1.0}, "dropout: needs 0"),
    )
    for values, message in cases:
        with pytest.raises(ConfigError, match=message):
            replace(CONFIG, **values)
