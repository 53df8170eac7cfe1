"""`regard transcribe morse` on audio of a second synthesiser."""

import importlib.util
import sys
from pathlib import Path

import pytest

import regard as rg
from regard.tasks import error_rate

FILE = Path(__file__).parents[2] / "benchmarks/morse_conditions.py"


@pytest.fixture(scope="module")
def conditions():
    spec = importlib.util.spec_from_file_location("morse_conditions", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["morse_conditions"] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def run():
    return rg.load("morse")


@pytest.mark.parametrize(
    "name",
    [
        "starts on the first dot, ends on the last",
        "1,000 Hz",
        "300 Hz",
        "clipped by 20 dB, noise 10 dB below",
        "limited by 30 dB, noise 6 dB below",
        "gain control, noise 6 dB below",
        "Farnsworth, gaps x 1.5",
        "timing +-20%",
        "-40 dBFS",
    ],
)
def test_recordings_of_a_radio_condition_are_transcribed(conditions, run, tmp_path, name):
    sent = conditions.write_all(tmp_path, conditions.CONDITIONS[name], 2)
    found = run.apply([path for path, _ in sent])
    assert error_rate([one.text for one in found], [text for _, text in sent]) < 0.02
    assert all((one.confidence or 0) >= run.calibration.threshold for one in found)


def test_no_text_begins_or_ends_with_a_space(conditions, run, tmp_path):
    sent = conditions.write_all(tmp_path, conditions.Condition(clip=20, wpm=40), 3)
    texts = run.transcribe([path for path, _ in sent])
    assert texts == [text.strip() for text in texts]
    assert all(texts)
