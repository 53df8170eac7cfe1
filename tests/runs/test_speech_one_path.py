"""`evaluate` and `regard transcribe` process the same raw files alike."""

import json
from dataclasses import replace

import numpy as np
import pytest
import soundfile
import torch
from fastapi.testclient import TestClient
from torch.testing import assert_close
from typer.testing import CliRunner

import regard as rg
from regard import models, runs, tasks
from regard.cli import app
from regard.data import AudioExample, CharTokenizer, PeakNormalizer, Resampler
from regard.decode import Transcriber
from regard.models import Recogniser, recogniser_tiny
from regard.tasks.recognition.evaluator import RecognitionEvaluator, transcribe_batch_detailed
from regard.web.api import create_app


def talkative(folder, **options) -> runs.Run:
    """A run whose untrained model answers every sound with a text that depends on each sample."""
    words = CharTokenizer.train(["0123456789 "])
    torch.manual_seed(0)
    config = recogniser_tiny(words.vocab, layers=1, dim=16, heads=2, dropout=0.0, **options)
    model = Recogniser(config).eval()
    model.standardise.mean.fill_(-1.0)
    model.standardise.std.fill_(2.0)
    with torch.no_grad():
        model.head.weight.mul_(8)
    morse = runs.override_settings(tasks.recipe("morse"), ["layers=1", "dim=16", "heads=2"])
    folder.mkdir()
    words.save(folder)
    models.save(model, folder)
    text = json.dumps({"version": 1, "recipe": runs.config_to_json(morse)})
    (folder / "recipe.json").write_text(text)
    return runs.load_run(folder)


def spoken(rate: int, number: int) -> np.ndarray:
    """Bursts of a few tones with sudden onsets, up to the last sample, at any level."""
    rng = np.random.default_rng(number)
    time = np.arange(int(rng.uniform(0.4, 1.2) * rate)) / rate
    wave = sum(np.sin(2 * np.pi * f * time) for f in rng.uniform(200, 2500, 4))
    wave *= 0.1 + np.abs(np.sin(2 * np.pi * rng.uniform(1, 4) * time + number))
    return wave / np.abs(wave).max() * 10 ** rng.uniform(-2, 0)


@pytest.mark.parametrize("rate", [8000, 11025])
@pytest.mark.parametrize("kind", ["levels itself", "does not"])
def test_evaluation_and_command_agree_on_raw_files(tmp_path, rate, kind):
    options = {"cmvn_depth": 12.0, "filters": 4} if kind == "levels itself" else {}
    run = talkative(tmp_path / "run", **options)
    files = [tmp_path / f"{n}.wav" for n in range(4)]
    for n, file in enumerate(files):
        soundfile.write(file, spoken(rate, n), rate, subtype="PCM_16")
    waves = [torch.from_numpy(soundfile.read(file, dtype="float32")[0]) for file in files]
    answers = RecognitionEvaluator(
        [AudioExample(wave, "1", rate) for wave in waves], run.tokenizer
    ).predict(run.model)
    assert all(answers)
    assert len(set(answers)) == 4
    done = CliRunner().invoke(app, ["transcribe", str(run.folder), *map(str, files)])
    assert [line.split("\t")[1] for line in done.stdout.splitlines()] == answers
    assert run.transcribe(files) == answers


def test_evaluation_and_command_agree_on_morse(tmp_path):
    run = rg.load("morse")
    sounds = list(run.recipe.data.source(snr=(5, 5), eval_size=3).examples("test", 0))
    files = [tmp_path / f"{n}.wav" for n in range(3)]
    for sound, file in zip(sounds, files, strict=True):
        soundfile.write(file, sound.wave.numpy(), 8000, subtype="FLOAT")
    found = transcribe_batch_detailed(run.model, run.tokenizer, sounds)
    heard = run.apply(files)
    assert [one.text for one in heard] == [one.text for one in found]
    assert_close([one.score for one in heard], [one.score for one in found], atol=1e-4, rtol=0)


def test_a_recording_of_a_narrow_band_is_named(tmp_path):
    """In the command, in Python and over HTTP: nothing above 4 kHz where training had it."""
    run = talkative(tmp_path / "run")
    task = tasks.SpeechTask(folder="gone", sample_rate=8000, online_cmvn=False)
    narrow = replace(run, recipe=replace(run.recipe, data=task))
    soundfile.write(tmp_path / "a.wav", spoken(4000, 0), 4000, subtype="ULAW")
    soundfile.write(tmp_path / "b.wav", spoken(8000, 0), 8000)
    reason = "recorded at 4000 Hz, so that it has nothing above 2000 Hz, and the training had 8000"
    files = [str(tmp_path / name) for name in ("a.wav", "b.wav")]
    low, same = narrow.apply(files)
    assert f"a.wav: {reason} Hz; the text may be wrong" in low.warning
    assert same.warning == ""
    with pytest.warns(UserWarning, match="recorded at 4000 Hz"):
        narrow.transcribe(files)
    trained_narrow = replace(
        narrow, recipe=replace(run.recipe, data=replace(task, lowest_rate=4000))
    )
    assert trained_narrow.transcribe(files) == [low.text, same.text]
    text = json.dumps({"version": 1, "recipe": runs.config_to_json(narrow.recipe)})
    (tmp_path / "run" / "recipe.json").write_text(text)
    done = CliRunner().invoke(app, ["transcribe", str(tmp_path / "run"), files[0]])
    assert done.exit_code == 1
    assert reason in " ".join(done.stderr.split())
    with TestClient(create_app({"run": narrow}), base_url="http://127.0.0.1") as client:
        answer = client.post("/transcribe", content=(tmp_path / "a.wav").read_bytes()).json()
    assert answer["text"] == low.text
    assert answer["warning"] == f"body: {reason} Hz; the text may be wrong"
    live = runs.TranscribeJob(narrow).stream([torch.zeros(4000)], rate=4000)
    assert reason in list(live)[-1].warning


def test_nothing_recognised_is_named_without_a_calibration(tmp_path):
    run = talkative(tmp_path / "run")
    with torch.no_grad():
        run.model.head.bias[0] += 1000  # blanks only
    soundfile.write(tmp_path / "a.wav", spoken(8000, 0), 8000)
    (found,) = run.apply(tmp_path / "a.wav")
    assert (found.text, run.calibration) == ("", None)
    assert found.warning == f"warning: {tmp_path / 'a.wav'}: nothing recognised"


def test_the_score_of_a_stream_is_that_of_the_whole(tmp_path):
    run = talkative(tmp_path / "run", cmvn_depth=12.0)
    wave = torch.from_numpy(spoken(8000, 3)).float()
    (want,) = transcribe_batch_detailed(run.model, run.tokenizer, [AudioExample(wave, "", 8000)])
    transcriber = Transcriber(run.model, run.tokenizer)
    for size in (77, 4000):
        transcriber.prepare(wave.split(size))
        text = "".join(transcriber.push(piece) for piece in wave.split(size))
        assert text + transcriber.finish() == want.text
        assert_close(transcriber.score, want.score, atol=1e-4, rtol=1e-4)


def test_a_recording_is_divided_by_its_own_peak_and_a_constant_is_taken_out():
    wave = torch.tensor([0.1, 0.1, 0.1, 0.35, -0.05])
    level = PeakNormalizer.from_recording(8000, wave.split(2), dither=0.0)
    assert_close(level(wave), (wave - wave.mean()) / 0.23)
    assert level.delay == 0


def test_an_onset_keeps_its_shape_also_live():
    time = torch.arange(1600) / 8000
    wave = 0.3 * (time / 0.2) * torch.sin(2 * torch.pi * 500 * time)
    level = PeakNormalizer(8000, dither=0.0)
    got = torch.cat([level(wave), level.finish()])
    assert len(got) == len(wave)
    assert got[:80].abs().max() < 0.06  # it was 1: the first sample set the scale
    assert_close(got, wave / 0.3, atol=0.03, rtol=0)


def test_a_sound_at_another_rate_is_resampled_and_not_misread():
    words = CharTokenizer.train(["01 "])
    model = Recogniser(recogniser_tiny(words.vocab, layers=1, dim=16, heads=2)).eval()
    wave = torch.from_numpy(spoken(16000, 1)).float()
    resample = Resampler(16000, 8000)
    slow = torch.cat([resample(wave), resample.finish()])
    got, want = (
        transcribe_batch_detailed(model, words, [AudioExample(*x)])[0]
        for x in ((wave, "", 16000), (slow, "", 8000))
    )
    assert got == want
