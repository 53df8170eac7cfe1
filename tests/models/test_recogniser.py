"""The recogniser is causal, ignores padding, and streams what the recording gives."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from regard.errors import ConfigError, ShapeError
from regard.models import Recogniser, RecogniserConfig, ctc_loss, recogniser_small, recogniser_tiny
from regard.ops import Chunked, log_mel

chunks = st.sampled_from([1, 2, 3, None])
lefts = st.sampled_from([0, 1, 3, None])


def tiny(**changes) -> Recogniser:
    sizes = {"n_mels": 4, "dim": 8, "layers": 2, "heads": 2, "ffn_dim": 16, "sample_rate": 8000}
    config = RecogniserConfig(**{"vocab": 5, **sizes, **changes})
    return Recogniser(config).double().eval()


def frames(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def test_ctc_by_hand():
    # three outputs, labels {blank, a}; "a" is every path with one unbroken run of a: 6 of 8
    even = torch.full((1, 3, 2), 0.5, dtype=torch.float64).log()
    one = torch.tensor([1])
    got = ctc_loss(even, torch.tensor([3]), one[None], one)
    assert_close(got, -torch.tensor(6 / 8, dtype=torch.float64).log())


def test_ctc_sums_over_every_path():
    log_probs = frames(1, 4, 3).log_softmax(-1)
    total = torch.zeros((), dtype=torch.float64)
    for path in itertools.product(range(3), repeat=4):
        labels = [label for label, _ in itertools.groupby(path) if label]
        if labels == [2, 2]:
            total += log_probs[0, range(4), list(path)].sum().exp()
    two = torch.tensor([2])
    got = ctc_loss(log_probs, torch.tensor([4]), torch.tensor([[2, 2]]), two)
    assert_close(got, -total.log() / 2)


def test_delay_is_the_frame_and_the_rest_of_the_chunk():
    assert recogniser_tiny(vocab=3).delay == 0.025
    assert recogniser_small(vocab=3).delay == 0.025 + 15 * 0.04


def test_probabilities_sum_to_one():
    log_probs, lengths = tiny()(frames(2, 9, 4))
    assert lengths.tolist() == [3, 3]
    assert_close(log_probs.exp().sum(-1), torch.ones(2, 3, dtype=torch.float64))


@given(left=st.integers(0, 5))
def test_strictly_causal_is_chunks_of_one(left):
    mask = recogniser_tiny(vocab=2, left_chunks=left).mask
    assert mask is not None
    assert torch.equal(mask.dense(9, 9), Chunked(1, left).dense(9, 9))


@settings(max_examples=20)
@given(chunk=st.integers(1, 3), left=lefts, time=st.integers(1, 40), data=st.data())
def test_outputs_do_not_depend_on_later_chunks(chunk, left, time, data):
    model, x = tiny(chunk=chunk, left_chunks=left), frames(1, time, 4)
    before, (outputs,) = model(x)
    now = data.draw(st.integers(0, int(outputs) - 1))
    last = (now // chunk + 1) * chunk - 1  # the output at the end of its chunk
    x[:, 4 * last + 1 :] = 7.0
    after, _ = model(x)
    assert_close(after[:, : now + 1], before[:, : now + 1], atol=1e-12, rtol=0)


@settings(max_examples=20)
@given(chunk=chunks, left=lefts, length=st.integers(1, 20), more=st.integers(0, 12))
def test_padding_changes_nothing(chunk, left, length, more):
    model, x = tiny(chunk=chunk, left_chunks=left), frames(2, length + more, 4)
    alone, (outputs, _) = model(x[:1, :length].repeat(2, 1, 1))
    x[0, length:] = torch.nan
    padded, lengths = model(x, torch.tensor([length, length + more]))
    assert lengths[0] == outputs
    assert_close(padded[0, :outputs], alone[0], atol=1e-12, rtol=0)
    assert not padded.isnan().any()


def test_the_past_beyond_the_left_context_is_forgotten():
    model, x = tiny(chunk=1, left_chunks=1, layers=2), frames(1, 64, 4)
    before, _ = model(x)
    x[:, :8] = 7.0
    after, _ = model(x)
    # two layers reach back 2 outputs, two convolutions 6 frames: output 5 hears frames 6 to 20
    assert not torch.allclose(after[:, 5], before[:, 5])
    assert_close(after[:, 6:], before[:, 6:], atol=1e-12, rtol=0)


def test_order_matters_and_only_by_distance():
    encoder, x, time = tiny().encoder, frames(1, 6, 8), torch.arange(6)
    plain = encoder(x)
    assert not torch.allclose(encoder(x.flip(1)).flip(1), plain)
    assert_close(encoder(x, positions=time + 1_000_000), plain, atol=1e-8, rtol=0)


class Kept:
    """What a stream carries for one model: conv inputs, keys and values, and where it stands."""

    def __init__(self, model: Recogniser):
        self.model = model
        self.tails = [frames(1, c.in_channels, 2) * 0 for c in model.subsample.convolutions]
        self.layers: dict[nn.Module, tuple[torch.Tensor, torch.Tensor]] = {}
        self.kept = self.heard = 0

    def hear(self, x: torch.Tensor) -> torch.Tensor:
        """The outputs for 4 · chunk more frames."""
        model, chunk, left = self.model, self.model.config.chunk, self.model.config.left_chunks
        assert chunk is not None
        assert left is not None
        x = model.standardise(x).mT
        for i, convolution in enumerate(model.subsample.convolutions):
            x = torch.cat([self.tails[i], x], -1)
            self.tails[i] = x[..., -2:]
            x = F.gelu(convolution(x))
        positions = torch.arange(self.heard, self.heard + x.shape[-1])
        y = model.encoder(
            x.mT, mask=model.config.mask, positions=positions, offset=self.kept, cache=self.remember
        )
        self.heard += x.shape[-1]
        self.kept = min(self.kept + x.shape[-1], chunk * left)
        self.layers = {
            layer: (k[..., k.shape[-2] - self.kept :, :], v[..., v.shape[-2] - self.kept :, :])
            for layer, (k, v) in self.layers.items()
        }
        return model.head(y).log_softmax(-1)

    def remember(self, layer: nn.Module, k: torch.Tensor, v: torch.Tensor):
        if layer in self.layers:
            k = torch.cat([self.layers[layer][0], k], -2)
            v = torch.cat([self.layers[layer][1], v], -2)
        self.layers[layer] = (k, v)
        return k, v


@settings(max_examples=10)
@given(chunk=st.integers(1, 3), left=st.integers(0, 3), count=st.integers(1, 7))
def test_streaming_with_a_bounded_cache_matches_offline(chunk, left, count):
    model, x = tiny(chunk=chunk, left_chunks=left), frames(1, 4 * chunk * count, 4)
    whole, _ = model(x)
    stream = Kept(model)
    pieces = [stream.hear(piece) for piece in x.split(4 * chunk, 1)]
    assert_close(torch.cat(pieces, 1), whole, atol=1e-12, rtol=0)
    assert stream.kept <= chunk * left


def test_from_a_waveform_is_from_its_features():
    model, wave = tiny(), frames(2, 1500)
    log_probs, lengths = model.forward_waveform(wave, torch.tensor([1500, 900]))
    features = log_mel(wave, 8000, n_mels=4)
    assert lengths.tolist() == [5, 3]
    assert torch.equal(log_probs[0], model(features)[0][0])
    alone, _ = model.forward_waveform(wave[1:, :900])
    assert_close(log_probs[1, :3], alone[0], atol=1e-12, rtol=0)


def test_it_can_learn():
    torch.manual_seed(0)
    model = Recogniser(recogniser_tiny(vocab=4, n_mels=4, dim=16, heads=2, layers=1, dropout=0.0))
    x, lengths = torch.randn(3, 24, 4), torch.tensor([24, 24, 20])
    targets, counts = torch.tensor([[1, 2, 3], [3, 3, 0], [2, 0, 0]]), torch.tensor([3, 2, 1])
    model.standardise.fit(x, lengths)
    adam = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(60):
        loss = ctc_loss(*model(x, lengths), targets, counts)
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 < losses[0]


def test_errors_name_the_numbers(users_view):
    model = tiny()
    with pytest.raises(ShapeError, match="features: needs n_mels=4 values per frame, got 5"):
        model(frames(1, 9, 5))
    with pytest.raises(ShapeError, match=r"lengths: needs 0 to 9, got \[10\]"):
        model(frames(1, 9, 4), torch.tensor([10]))
    with pytest.raises(ShapeError, match=r"lengths: needs one for each of 1 sequences, got \(2,\)"):
        model(frames(1, 9, 4), torch.tensor([9, 9]))
    with pytest.raises(ShapeError, match="x: needs 1 frame or more, got 0"):
        model.forward_waveform(frames(1, 100))
    two, same = torch.tensor([2]), torch.tensor([[1, 1]])
    with pytest.raises(ShapeError, match="got 2 labels with 1 repeats for 2 outputs in sequence 0"):
        ctc_loss(frames(1, 2, 3).log_softmax(-1), two, same, two)
    with pytest.raises(ConfigError, match="dim: needs an even width per head .* got 3 for dim=12"):
        recogniser_tiny(vocab=3, dim=12)
    with pytest.raises(ConfigError, match="vocab: needs the blank and 1 label or more, got 1"):
        recogniser_tiny(vocab=1)
    with pytest.raises(ConfigError, match="chunk: needs a whole number of 1 or more, got 0"):
        recogniser_tiny(vocab=3, chunk=0)
    with pytest.raises(ConfigError, match="left_chunks: needs 0 or more, got -1; try None"):
        recogniser_tiny(vocab=3, left_chunks=-1)
    with pytest.raises(ConfigError, match="filters: needs a whole number of 1 or more, got 0"):
        recogniser_tiny(vocab=3, filters=0)
