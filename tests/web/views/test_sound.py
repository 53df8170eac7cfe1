"""The sound view returns what `regard transcribe` and the library return, live as from a file."""

import base64
import io
import json
import math

import numpy as np
import pytest
import soundfile
import torch
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

import regard as rg
from regard.data.audio.peak_normalization import normalize_recording
from regard.errors import ConfigError, FileError, LookError
from regard.tasks.recognition.pipeline import TranscribeJob
from regard.web.api import create_app
from regard.web.explorer.catalog import Catalog
from regard.web.explorer.explorer import Explorer, find_query, unpack
from regard.web.explorer.views.sound import AudioRequest, key_wave
from regard.web.jobs import Job

LETTERS = {"S": "...", "O": "---", "N": "-.", "A": ".-", "E": ".", " ": " "}
STREAM = "ws://127.0.0.1/explore/sound/stream?model=morse&rate=16000"


def tones(text, rate, wpm=20.0, pitch=700.0):
    """Morse code of its own: a list of tones and pauses, not our generator."""
    dot, parts = 1.2 / wpm, [np.zeros(rate // 2)]
    for letter in text:
        for sign in LETTERS[letter].strip():
            length = round((1 if sign == "." else 3) * dot * rate)
            ramp = np.minimum(1, np.minimum(np.arange(length), np.arange(length)[::-1]) / 80)
            parts += [ramp * np.sin(2 * math.pi * pitch * np.arange(length) / rate)]
            parts += [np.zeros(round(dot * rate))]
        parts += [np.zeros(round((4 if letter == " " else 2) * dot * rate))]
    return 0.4 * np.concatenate([*parts, np.zeros(rate // 2)])


@pytest.fixture(scope="module")
def explorer():
    torch.set_num_threads(1)
    return Explorer(Catalog(["morse", "phrases"], device="cpu"))


@pytest.fixture(scope="module")
def stereo_file(tmp_path_factory):
    """44.1 kHz, two channels: other than what the model takes in every respect."""
    path = tmp_path_factory.mktemp("sound") / "sos.wav"
    wave = tones("SOS NO SEA", 44100)
    soundfile.write(path, np.stack([wave, 0.5 * wave], 1), 44100)
    return path


def answer_of(explorer, **body):
    return explorer.answer("sound", {"model": "morse"} | body)


def test_a_file_from_elsewhere_gets_the_text_of_regard_transcribe(explorer, stereo_file):
    (last,) = TranscribeJob(explorer.catalog.run("morse")).files([stereo_file])
    answer = answer_of(explorer, file=explorer.upload(stereo_file.read_bytes()))
    assert answer["text"] == last.text == "SOS NO SEA"
    assert answer["confidence"] == last.confidence
    assert answer["notes"] == ["2 channels mixed to one", "resampled from 44100 to 8000 Hz"]
    assert "".join(x["text"] for x in answer["emissions"]).strip() == answer["text"]
    times = [x["seconds"] for x in answer["emissions"]]
    assert times == sorted(times)
    assert 0.5 < times[0] < times[-1] < answer["seconds"]


def test_features_and_attention_are_those_of_the_model(explorer, stereo_file):
    run = explorer.catalog.run("morse")
    samples = normalize_recording(rg.data.AudioFile(stereo_file, 8000).wave(), 8000)
    frames = rg.ops.log_mel(samples, 8000, n_mels=40)
    with torch.no_grad(), rg.look(run.model) as sight:
        run.model(frames[None])
    file = explorer.upload(stereo_file.read_bytes())
    answer = answer_of(explorer, file=file, site="encoder.1.self", head=2)
    expected = run.model.standardise(frames[None])[0]
    assert torch.allclose(unpack(answer["features"]), expected, atol=1e-5)
    assert answer["seconds"] == pytest.approx(len(frames) * 0.01)
    weights = unpack(answer["map"])
    assert torch.allclose(weights, sight["encoder.1.self"].window(2)[0], atol=1e-6)
    assert torch.equal(weights, weights.tril())
    assert torch.allclose(weights.sum(-1), torch.ones(len(weights)), atol=1e-5)


def test_the_mean_of_heads_and_a_pooled_map_are_the_librarys(explorer):
    body = {"message": "PARIS PARIS PARIS", "wpm": 14}
    answer = answer_of(explorer, **body)
    assert answer["pool"] > 1
    assert max(unpack(answer["map"]).shape) <= 256
    heads = [unpack(answer_of(explorer, **body, head=h)["map"]) for h in range(4)]
    assert torch.allclose(unpack(answer["map"]), torch.stack(heads).mean(0), atol=1e-7)
    assert unpack(answer["thumbnails"]).shape[0] == 4 * 4


def test_a_typed_text_is_keyed_and_read_back_and_a_seed_repeats_it(explorer):
    assert answer_of(explorer, message="  paris   73 ")["text"] == "PARIS 73"
    first, again, other = (
        key_wave(AudioRequest(model="morse", message="E", seed=seed), 8000) for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_waveform_is_drawn_where_it_sounds(explorer):
    answer = answer_of(explorer, message="T", wpm=12, snr=40)  # one dash, from 0.3 to 0.6 s
    low, high = unpack(answer["wave"])
    at = (torch.arange(len(high)) + 0.5) / len(high) * answer["seconds"]
    loud = at[(high - low) > 0.5]
    assert float(loud[0]) == pytest.approx(0.3, abs=0.02)
    assert float(loud[-1]) == pytest.approx(0.6, abs=0.02)


def test_the_audio_that_is_played_is_the_recording(explorer, stereo_file):
    body = {"model": "morse", "file": explorer.upload(stereo_file.read_bytes())}
    content = base64.b64decode(explorer.answer("sound.audio", body)["wav"])
    samples, rate = soundfile.read(io.BytesIO(content), dtype="float32")
    expected = rg.data.AudioFile(stereo_file, 8000).wave()
    assert rate == 8000
    assert np.abs(samples - expected.numpy()).max() < 1e-4


def test_a_long_file_is_transcribed_in_full_with_progress_and_drawn_in_part(explorer, monkeypatch):
    monkeypatch.setattr("regard.web.explorer.views.sound.MAX_SHOWN_SECONDS", 5.0)
    wave = np.concatenate([tones("SOS", 8000), np.zeros(8000 * 28), tones("SEA", 8000)])
    file = io.BytesIO()
    soundfile.write(file, wave, 8000, format="FLAC")
    seen = []

    class Watched(Job):
        def report(self, fraction, text=""):
            super().report(fraction, text)
            seen.append(self.progress)

    request = {"model": "morse", "file": explorer.upload(file.getvalue())}
    answer = json.loads(explorer.answer_json(find_query("sound"), request, Watched()))
    assert answer["text"].startswith("SOS")
    assert answer["text"].endswith("SEA")
    assert answer["seconds"] == pytest.approx(5 + 1, abs=0.05)  # and a second of silence
    assert answer["total_seconds"] > 32
    assert len({x for x, _ in seen}) > 30
    assert "SOS" in seen[20][1]


def test_table_and_figure_hold_the_answer(explorer):
    query, body = find_query("sound"), {"model": "morse", "message": "SOS"}
    answer = explorer.answer("sound", body)
    rows = [line.split(",") for line in explorer.csv(query, body, Job()).splitlines()]
    assert [row[0] for row in rows] == ["text", "S", "O", "S"]
    assert [float(row[1]) for row in rows[1:]] == [x["seconds"] for x in answer["emissions"]]
    assert len(query.figure(answer).axes) == 3


def test_bad_files_are_one_sentence(explorer, stereo_file):
    whole = stereo_file.read_bytes()
    with pytest.raises(FileError, match="sound: needs to be WAV, FLAC or OGG, got") as caught:
        answer_of(explorer, file=explorer.upload(b"a text that is called a.wav"))
    assert "/tmp" not in str(caught.value)
    with pytest.raises(FileError, match="sound: needs audio, got a header and 0 samples"):
        answer_of(explorer, file=explorer.upload(whole[:44]))
    answer = answer_of(explorer, file=explorer.upload(whole[: len(whole) // 2]))
    assert not answer["is_complete"]
    assert "truncated" in answer["notes"][-1]


def test_silence_is_flagged(explorer):
    file = io.BytesIO()
    soundfile.write(file, np.zeros(8000), 8000, format="WAV")
    answer = answer_of(explorer, file=explorer.upload(file.getvalue()))
    assert (answer["text"], answer["warning"]) == ("", "sound: nothing recognised")


def test_what_cannot_be_is_refused(explorer):
    with pytest.raises(ConfigError, match="text: needs capitals, digits"):
        answer_of(explorer, message="größe")
    with pytest.raises(LookError, match="site: needs one of encoder.0.self"):
        answer_of(explorer, site="decoder.0.self")
    with pytest.raises(LookError, match="head: needs less than the 4 heads of .*, got 4"):
        answer_of(explorer, head=4)
    with pytest.raises(ConfigError, match="wpm"):
        answer_of(explorer, wpm=500)
    with pytest.raises(ConfigError, match="needs a run that transcribes audio, got .*'phrases'"):
        answer_of(explorer, model="phrases")


@pytest.fixture(scope="module")
def client(explorer):
    app = create_app({}, explorer=explorer)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        yield client


def stream(socket, samples, size=3201):
    """Send samples in odd pieces; the messages up to the last."""
    messages = []
    for at in range(0, len(samples), size):
        socket.send_bytes(samples[at : at + size])
        messages.append(socket.receive_json())
    socket.send_text("end")
    while not messages[-1]["is_last"]:
        messages.append(socket.receive_json())
    return messages


def test_a_live_recording_gets_the_text_of_regard_transcribe(client, explorer):
    samples = (tones("SOS NO SEA", 16000) * 32767).astype("<i2")
    with client.websocket_connect(STREAM, ["regard"]) as socket:
        assert socket.accepted_subprotocol == "regard"
        messages = stream(socket, samples.tobytes())
    waves = (torch.from_numpy(samples / 32768).float()).split(1600)
    job = TranscribeJob(explorer.catalog.run("morse"))
    expected = list(job.stream(waves, rate=16000))
    assert "".join(x["text"] for x in messages) == "".join(x.text for x in expected)
    assert "".join(x["text"] for x in messages).strip() == "SOS NO SEA"
    assert messages[-1]["confidence"] == pytest.approx(expected[-1].confidence)
    assert messages[-1]["notes"] == list(expected[-1].notes)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("model=phrases&rate=8000", "needs a run that transcribes"),
        ("model=no&rate=8000", "model: needs morse or phrases"),
        ("model=morse&rate=1", "rate: needs 1000 to 1000000"),
    ],
)
def test_a_recording_that_cannot_begin_says_why(client, query, message):
    with client.websocket_connect(f"ws://127.0.0.1/explore/sound/stream?{query}") as socket:
        socket.send_bytes(bytes(1600))
        assert message in socket.receive_json()["error"]


def test_a_message_of_samples_is_bounded(client):
    with client.websocket_connect(STREAM) as socket:
        socket.send_bytes(bytes((1 << 20) + 2))
        assert "at most 1048576 bytes" in socket.receive_json()["error"]


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1.evil.example"])
def test_another_origin_cannot_record(client, origin):
    headers = {"Origin": origin}
    with pytest.raises(WebSocketDisconnect), client.websocket_connect(STREAM, headers=headers):
        pass


def test_a_locked_server_takes_the_token_as_a_subprotocol_and_no_other_way(explorer):
    token = "a sécret, with commas"
    right = ["regard", f"regard.token.{token.encode().hex()}"]
    app = create_app({}, explorer=explorer, token=token)
    with TestClient(app, base_url="http://127.0.0.1") as locked:
        for offered in ([], ["regard"], ["regard", "regard.token.6162"], ["regard.token.zz"]):
            with pytest.raises(WebSocketDisconnect), locked.websocket_connect(STREAM, offered):
                pass
        in_url = f"{STREAM}&token={token.encode().hex()}"
        with pytest.raises(WebSocketDisconnect), locked.websocket_connect(in_url):
            pass
        with locked.websocket_connect(STREAM, right) as socket:
            assert socket.accepted_subprotocol == "regard"  # never the token
            socket.send_bytes(bytes(3200))
            assert socket.receive_json()["text"] == ""
        headers = {"Sec-WebSocket-Protocol": right[1], "X-Regard": "1"}
        assert locked.post("/explore/models", json={}, headers=headers).status_code == 401
