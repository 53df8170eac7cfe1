"""Streaming: any chunking gives the result of the whole, with a state of constant size."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from regard import data, decode, models
from regard.data import CharTokenizer
from regard.decode import AudioStream, AudioStreamState, BestPath, PrefixBeam, Transcriber
from regard.errors import ConfigError, ShapeError
from regard.models import Recogniser, RecogniserConfig
from regard.tasks import transcribe_batch

WORDS = CharTokenizer.train(["AB "])


# doubled weights let rounding grow: float32 is off by 6e-5 from float64, streamed or not
CLOSE = {"atol": 2e-4, "rtol": 0.0}


def tiny(**changes) -> Recogniser:
    """Random weights, wide ones: with small ones every output would be alike."""
    sizes = {
        "n_mels": 4,
        "dim": 8,
        "layers": 2,
        "heads": 2,
        "ffn_dim": 16,
        "sample_rate": 1000,
        "left_chunks": 2,
    }
    model = Recogniser(RecogniserConfig(**{"vocab": WORDS.vocab, **sizes, **changes})).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(2)
    return model


def cut(length: int, cuts: list[int]) -> list[int]:
    """The sizes of the pieces that some places cut a length into."""
    places = sorted({0, length, *(at % (length + 1) for at in cuts)})
    return [b - a for a, b in zip(places, places[1:], strict=False)]


def streamed(stream: AudioStream, wave: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    state, found = stream.start(), []
    for piece in wave.split(sizes):
        log_probs, state = stream.step(piece, state)
        found.append(log_probs)
    return torch.cat([*found, stream.finish(state)])


lengths, cuts = st.integers(25, 700), st.lists(st.integers(0, 10**6), max_size=20)
kinds = st.fixed_dictionaries(
    {
        "chunk": st.integers(1, 4),
        "left_chunks": st.integers(0, 3),
        "relative_bias": st.sampled_from(["none", "buckets", "alibi"]),
        "rope_theta": st.sampled_from([None, 10000.0]),
        "cmvn_depth": st.sampled_from([None, 3.0]),
        "filters": st.sampled_from([None, 3]),
    }
)


@settings(max_examples=25)
@given(kind=kinds, length=lengths, cuts=cuts)
def test_streaming_matches_offline_for_any_split(kind, length, cuts):
    model, wave = tiny(**kind).double(), torch.randn(length, dtype=torch.float64)
    whole, _ = model.forward_waveform(wave[None])
    assert_close(streamed(AudioStream(model), wave, cut(length, cuts)), whole[0], atol=1e-9, rtol=0)


@settings(max_examples=12)
@given(kind=kinds, length=lengths, cuts=cuts)
def test_in_single_precision_it_is_within_a_hundred_thousandth_and_the_text_is_equal(
    kind, length, cuts
):
    model, wave = tiny(**kind), torch.randn(length)
    whole, _ = model.forward_waveform(wave[None])
    # behind filters stands a norm, here of 8 numbers: where they hardly differ, rounding shows
    close = CLOSE["atol"] if kind["filters"] is None else 5e-4
    streams = streamed(AudioStream(model), wave, cut(length, cuts))
    assert_close(streams, whole[0], atol=close, rtol=close)
    transcriber = Transcriber(model, WORDS, normalize_peak=False)
    text = "".join(transcriber.push(piece) for piece in wave.split(cut(length, cuts)))
    ended = torch.cat([wave, torch.zeros(1000)])  # a second of silence lets the last label out
    log_probs, lengths = model.forward_waveform(ended[None])
    labels = BestPath()(log_probs[0, : lengths[0]])
    # a space that was emitted before the end cannot be taken back
    assert (text + transcriber.finish()).rstrip() == WORDS.decode(labels).strip()


@pytest.mark.parametrize("chunk", [1, 3])
def test_single_samples_are_enough(chunk):
    model, wave = tiny(chunk=chunk), torch.randn(300)
    whole, _ = model.forward_waveform(wave[None])
    assert_close(streamed(AudioStream(model), wave, [1] * 300), whole[0], **CLOSE)


@pytest.mark.parametrize("chunk", [1, 3])
def test_single_frames_are_enough(chunk):
    model, frames = tiny(chunk=chunk), torch.randn(50, 4)
    stream, found = AudioStream(model), []
    state = stream.start()
    for frame in frames.split(1):
        log_probs, state = stream.step_features(frame, state)
        found.append(log_probs)
    found.append(stream.finish(state))
    assert_close(torch.cat(found), model(frames[None])[0][0], **CLOSE)


def test_a_piece_longer_than_a_block_is_the_same_as_many():
    model, wave = tiny(left_chunks=3, chunk=3), torch.randn(9000)
    assert len(wave) > AudioStream(model).block * 10
    whole, _ = model.forward_waveform(wave[None])
    assert_close(streamed(AudioStream(model), wave, [9000]), whole[0], **CLOSE)


def bytes_of(state: AudioStreamState) -> int:
    """What the state keeps alive: a view would keep all of what it was cut from."""
    held = [state.samples, *state.conv_inputs, state.pending, *state.cache.storage.layers]
    return sum(x.untyped_storage().nbytes() for x in held)


@pytest.mark.parametrize(
    ("chunk", "piece", "time"), [(1, 7, 420), (1, 40, 1000), (4, 40, 1600), (3, 2000, 6000)]
)
def test_the_state_does_not_grow_with_time(chunk, piece, time):
    stream = AudioStream(tiny(chunk=chunk))
    state, most = stream.start(), []
    for _ in range(4):
        sizes = []
        for part in torch.randn(time).split(piece):
            _, state = stream.step(part, state)
            assert bytes_of(state) == 4 * state.size
            sizes.append(state.size)
        most.append(max(sizes))
    assert most[0] == most[-1]
    assert state.cache.length == 2 * chunk


def test_the_latency_is_the_delay_of_the_model():
    model = tiny(chunk=3, sample_rate=1000)
    stream, state = AudioStream(model), AudioStream(model).start()
    for sample in range(1, 500):
        log_probs, state = stream.step(torch.randn(1), state)
        if len(log_probs):
            assert sample == round(1000 * model.config.delay)
            break


def test_a_model_trained_without_a_bound_can_be_given_one():
    wave = torch.randn(600)
    bounded, free = tiny(left_chunks=2), tiny(left_chunks=None)
    free.load_state_dict(bounded.state_dict())
    got = streamed(AudioStream(free, left_chunks=2), wave, [600])
    assert_close(got, bounded.forward_waveform(wave[None])[0][0], **CLOSE)


def test_an_old_state_can_be_continued_twice():
    stream, wave = AudioStream(tiny()), torch.randn(400)
    _, middle = stream.step(wave[:200], stream.start())
    one, _ = stream.step(wave[200:], middle)
    two, _ = stream.step(wave[200:], middle)
    assert torch.equal(one, two)


def test_a_label_held_across_pieces_is_one_label():
    path = torch.tensor([0, 4, 4, 4, 0, 4, 5, 5, 0, 0, 6])
    sure = torch.nn.functional.one_hot(path, 7).float().log()
    want = BestPath()(sure)
    for size in range(1, 12):
        hear = BestPath()
        assert [label for piece in sure.split(size) for label in hear(piece)] == want


class Played(Transcriber):
    """A transcriber with a recogniser that emits the given labels, one per call."""

    def __init__(self, tokenizer: data.Tokenizer):
        model = tiny(vocab=tokenizer.vocab)
        super().__init__(model, tokenizer)

    def say(self, label: int) -> str:
        return self._spell([label])


def test_a_multibyte_character_is_emitted_when_complete():
    tokenizer = data.ByteTokenizer()
    played = Played(tokenizer)
    emitted = [played.say(label) for label in tokenizer.encode("aé€😀b")]
    assert emitted == ["a", "", "é", "", "", "€", "", "", "", "😀", "b"]
    assert played.say(tokenizer.encode("é")[0]) == ""
    assert played.partial_text == "�"


def test_a_streamed_beam_matches_offline():
    torch.manual_seed(1)  # weights that recognise something in noise, early
    model, wave = tiny(left_chunks=3), torch.randn(2000)
    log_probs = model.forward_waveform(wave[None])[0][0].detach()
    (want,) = decode.prefix_beam(log_probs, width=6)
    ended = torch.cat([wave, torch.zeros(1000)])
    (all_of_it,) = decode.prefix_beam(model.forward_waveform(ended[None])[0][0].detach(), width=6)
    transcriber = Transcriber(model, WORDS, search=PrefixBeam(width=6), normalize_peak=False)
    for _ in range(2):  # after `finish` it starts again
        text = "".join(transcriber.push(piece) for piece in wave.split(130))
        assert len(text) > 0
        # a transcript begins with its first word
        assert text + transcriber.partial_text == WORDS.decode(list(want.labels)).lstrip()
        assert text + transcriber.finish() == WORDS.decode(list(all_of_it.labels)).strip()


def test_silence_neither_loses_nor_adds_a_word():
    model = tiny()
    wave = torch.zeros(3000)
    transcriber = Transcriber(model, WORDS)
    text = "".join(transcriber.push(piece) for piece in wave.split(77)) + transcriber.finish()
    assert text == transcribe_batch(model, WORDS, [data.AudioExample(wave, "", 1000)])[0]


def test_models_that_cannot_stream_raise(users_view):
    with pytest.raises(
        ConfigError, match="left_chunks: needs a bound for a stream, got None: .*; try"
    ):
        AudioStream(tiny(left_chunks=None))
    with pytest.raises(ConfigError, match="chunk: needs a number for a stream, got None: .*; try"):
        AudioStream(tiny(chunk=None))
    with pytest.raises(ConfigError, match="left_chunks: needs 0 or up to the model's 2, got 3"):
        AudioStream(tiny(), left_chunks=3)
    with pytest.raises(ConfigError, match="left_chunks: needs 0 or more, got -1"):
        AudioStream(tiny(left_chunks=None), left_chunks=-1)
    with pytest.raises(ConfigError, match="model: needs evaluation mode"):
        AudioStream(tiny().train())
    with pytest.raises(ConfigError, match="model: needs a Recogniser, got LanguageModel"):
        AudioStream(models.LanguageModel(models.language_tiny(vocab=5)).eval())
    with pytest.raises(ConfigError, match="tokenizer: needs the model's vocab=7, got 260"):
        Transcriber(tiny(), data.ByteTokenizer())
    stream = AudioStream(tiny())
    with pytest.raises(ShapeError, match="frames: needs n_mels=4 values per frame, got 5"):
        stream.step_features(torch.zeros(3, 5), stream.start())
