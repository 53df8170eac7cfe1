"""`regard transcribe`: files and standard input become text; problems are reported."""

import shutil
import subprocess
import sys

import numpy as np
import pytest
import soundfile
from typer.testing import CliRunner, Result

RATE = 8000


def morse(text: str, level: float = 0.5) -> np.ndarray:
    """Clean code, with the silence that a last letter needs."""
    from regard.data import key_text, keyed_tone

    down, _ = key_text(text, 22, RATE)
    return level * keyed_tone(np.pad(down, (1600, 4000)), 600, RATE)


def pcm(wave: np.ndarray) -> bytes:
    return np.round(wave * 32767).astype("<i2").tobytes()


def run(*args: object, given: bytes = b"") -> Result:
    from regard.cli import app

    return CliRunner().invoke(app, ["transcribe", *map(str, args)], input=given)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("sounds")
    soundfile.write(place / "one.wav", morse("PARIS 73"), RATE)
    soft = morse("DE", level=0.01)
    soundfile.write(place / "two.flac", np.stack([soft, soft], 1).repeat(2, 0), 2 * RATE)
    (place / "empty.wav").write_bytes(b"")
    (place / "cut.wav").write_bytes((place / "one.wav").read_bytes()[:40000])
    soundfile.write(place / "silent.wav", np.zeros(RATE), RATE)
    return place


def test_a_file_becomes_a_line_and_the_report_goes_elsewhere(folder):
    done = run("morse", folder / "one.wav")
    assert (done.exit_code, done.stdout) == (0, "PARIS 73\n")
    assert "real-time factor" in done.stderr
    assert "latency" in done.stderr


def test_several_files_have_their_names_and_a_bad_one_stops_no_other(folder):
    names = ("one.wav", "empty.wav", "two.flac")
    done = run("morse", *(folder / name for name in names))
    assert done.exit_code == 1
    assert done.stdout == f"{folder}/one.wav\tPARIS 73\n{folder}/two.flac\tDE\n"
    assert "empty.wav: needs to be a sound file, got an empty one of 0 bytes" in done.stderr
    assert "two.flac: 2 channels mixed to one" in done.stderr
    assert "two.flac: resampled from 16000 to 8000 Hz" in done.stderr


def test_a_truncated_file_is_transcribed_as_far_as_it_goes(folder):
    done = run("morse", folder / "cut.wav")
    assert done.exit_code == 1
    assert done.stdout.startswith("PAR")
    assert "truncated: 2.50 s of 5.01 s" in done.stderr


def test_silence_is_an_empty_line_and_reported(folder):
    done = run("morse", folder / "silent.wav")
    assert (done.exit_code, done.stdout) == (1, "\n")
    assert "silent.wav: silence: " in done.stderr


def test_live_samples_become_lines_of_words_whatever_the_rate():
    wave = morse("PARIS 73")
    done = run("morse", "-", given=pcm(wave))
    assert (done.exit_code, done.stdout) == (0, "PARIS\n73\n")
    assert "chunks of 100 ms" in done.stderr
    done = run("morse", "-", "--rate", 2 * RATE, given=pcm(wave.repeat(2)))
    assert (done.exit_code, done.stdout) == (0, "PARIS\n73\n")
    assert "resampled from 16000 to 8000" in done.stderr


def test_a_pipe_that_closes_within_a_sample_loses_that_byte_alone():
    done = run("morse", "-", "--beam", "4", given=pcm(morse("PARIS 73")) + b"x")
    assert (done.exit_code, done.stdout) == (0, "PARIS\n73\n")
    assert "it ended within a sample" in done.stderr


@pytest.fixture
def judged(tmp_path):
    """The morse model in a folder of its own, with a calibration of this threshold, or none."""
    from regard.runs.loading import PRETRAINED_FOLDER
    from regard.train import Calibration, save_calibration

    def make(threshold: float | None):
        place = tmp_path / f"run{threshold}"
        shutil.copytree(PRETRAINED_FOLDER / "morse", place)
        (place / "calibration.json").unlink(missing_ok=True)
        if threshold is not None:
            fitted = Calibration(slope=0.0, offset=0.0, threshold=threshold, examples=9)
            save_calibration(place, fitted)
        return place

    return make


def test_text_that_may_be_wrong_is_written_all_the_same_with_a_warning_and_exit_code_1(
    folder, judged
):
    warning = "one.wav: confidence 0.50 is below 0.75; the text may be wrong\n"
    done = run(judged(0.75), folder / "one.wav")
    assert (done.exit_code, done.stdout) == (1, "PARIS 73\n")
    assert f"regard: warning: {folder}/{warning}" in done.stderr
    done = run(judged(0.25), folder / "one.wav")
    assert (done.exit_code, done.stdout) == (0, "PARIS 73\n")
    assert "warning" not in done.stderr


def test_nothing_recognised_is_reported_and_exits_with_1(folder, judged):
    done = run(judged(0.0), folder / "silent.wav")
    assert (done.exit_code, done.stdout) == (1, "\n")
    assert f"regard: warning: {folder}/silent.wav: nothing recognised\n" in done.stderr


def test_a_run_without_a_calibration_warns_only_of_what_it_did_not_recognise(folder, judged):
    done = run(judged(None), folder / "one.wav", folder / "silent.wav")
    assert done.exit_code == 1
    warnings = [line for line in done.stderr.splitlines() if "warning" in line]
    assert warnings == [f"regard: warning: {folder}/silent.wav: nothing recognised"]


def test_live_audio_gets_its_confidence_at_the_end(judged):
    done = run(judged(0.75), "-", given=pcm(morse("PARIS 73")))
    assert (done.exit_code, done.stdout) == (1, "PARIS\n73\n")
    assert "regard: warning: standard input: confidence 0.50 is below 0.75" in done.stderr


def test_a_closed_pipe_gives_no_traceback(folder):
    command = (
        f"{sys.executable} -m regard transcribe morse {folder}/one.wav {folder}/one.wav | true"
    )
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert "Traceback" not in done.stderr


def test_input_that_cannot_be_transcribed_exits_with_2(folder):
    for args, given, message in (
        (
            ("morse", folder / "none.wav"),
            b"",
            "none.wav: needs to be a sound file, got no such file",
        ),
        (("morse", "-"), b"", "standard input: needs 16-bit samples, got nothing"),
        (("morse", "-"), (folder / "one.wav").read_bytes(), "got a WAV file; try its name"),
        (
            ("morse", "-", "--rate", 5),
            b"xx",
            "rate: needs 1000 to 1000000 samples per second, got 5",
        ),
        (("morse", "-", "--chunk", 0), b"xx", "chunk: needs 0.01 to 10 seconds, got 0"),
        (("morse", "-", folder / "one.wav"), b"xx", "paths: needs - alone"),
        (("morse", folder / "one.wav", "--beam", 0), b"", "width: needs 1 or more, got 0"),
        (
            ("phrases", folder / "one.wav"),
            b"",
            "run: needs a model that can transcribe, got a Translator",
        ),
        (("mors", folder / "one.wav"), b"", "try morse"),
    ):
        done = run(*args, given=given)
        assert done.exit_code == 2, args
        assert message in done.stderr
        assert done.stdout == ""
