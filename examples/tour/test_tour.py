"""The tour runs anywhere, and shows numbers that the library returned."""

import html
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TOUR = Path(__file__).with_name("tour.py")
ROOT = TOUR.parents[2]


@pytest.fixture(scope="module")
def shown() -> str:
    env = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "COLUMNS")}
    done = subprocess.run([sys.executable, TOUR], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_worked_head_is_shown_with_its_exact_scores(shown):
    for number in ("-53/4", "17/2", "0.9985", "0.6225", "1.1786", "0.1989"):
        assert number in shown


def test_both_limits_of_sharpness_are_shown(shown):
    lines = [line.split() for line in shown.splitlines()]
    assert ["0", *["0.2500"] * 4, "1.000"] in lines
    assert ["∞", "0.0000", "0.5000", "0.5000", "0.0000", "0.500"] in lines


def test_every_model_is_built_and_run(shown):
    from regard import models

    kinds = [name for name in models.__all__ if f"{name}Config" in models.__all__]
    lines = [line.split()[0] for line in shown.splitlines() if line.strip()]
    assert set(lines) >= {"Translator", "RecurrentTranslator", "VisionTransformer", "Recogniser"}
    assert set(kinds) - {"Stack", "Token", "SpeechEncoder"} <= set(lines)


def test_the_svg_in_the_readme_is_up_to_date(shown):
    drawn = (ROOT / "docs/start/tour.svg").read_text()
    text = squeeze(html.unescape("".join(re.findall(r"<text[^>]*>([^<]*)</text>", drawn))))
    before, _, after = shown.partition("One definition")  # its rounding errors differ by machine
    for part in (before, "Models  batch" + after.partition("Models  batch")[2]):
        assert squeeze(part) in text, "run make tour"


def squeeze(text: str) -> str:
    return "".join(text.split())


def test_piped_output_has_no_colour_codes_and_fits_80_columns(shown):
    assert "\x1b" not in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_the_tour_can_be_saved_as_svg(tmp_path):
    kept = tmp_path / "tour.svg"
    subprocess.run([sys.executable, TOUR, kept], capture_output=True, check=True)
    assert "53/4" in kept.read_text()
