"""Confidence of answers: fitted on held-out data, and a threshold that flags the wrong ones."""

import math

import pytest
import torch

from regard.errors import FileError, RegardError
from regard.train import Calibration, GradedAnswer, calibrate, load_calibration, save_calibration


def drawn(slope: float, offset: float, count: int = 4000) -> list[GradedAnswer]:
    """Answers that are right with the probability sigmoid(slope · score + offset)."""
    scores = torch.randn(count, dtype=torch.float64)
    right = torch.rand(count) < (slope * scores + offset).sigmoid()
    return [GradedAnswer(s, r) for s, r in zip(scores.tolist(), right.tolist(), strict=True)]


def test_platt_scaling_finds_the_curve_that_drew_the_answers():
    fitted = calibrate(drawn(2.0, 0.5))
    assert fitted.slope == pytest.approx(2.0, rel=0.1)
    assert fitted.offset == pytest.approx(0.5, abs=0.1)


def test_confidence_is_calibrated():
    fitted, new = calibrate(drawn(1.5, -0.3)), drawn(1.5, -0.3)
    middle = [one for one in new if 0.6 < fitted.confidence(one.score) < 0.7]
    assert sum(one.correct for one in middle) / len(middle) == pytest.approx(0.65, abs=0.06)


def test_threshold_keeps_95_percent_of_the_right_answers_and_flags_the_rest():
    graded = [GradedAnswer(float(n), n >= 100) for n in range(300)]
    fitted = calibrate(graded)
    assert all(fitted.is_unsure(one.score) == (not one.correct) for one in graded)
    mixed = calibrate(graded + [GradedAnswer(250.0, False)] * 5)
    kept = [not mixed.is_unsure(one.score) for one in graded if one.correct]
    assert sum(kept) / len(kept) >= 0.95


@pytest.mark.parametrize("right", [True, False])
def test_one_kind_of_answers_alone_promises_no_certainty(right: bool):
    fitted = calibrate([GradedAnswer(-0.5, right), GradedAnswer(-0.7, right)])
    assert 0.05 < fitted.confidence(-0.6) < 0.95


def test_extremes_are_survived():
    fitted = calibrate(
        [GradedAnswer(-math.inf, False), GradedAnswer(0.0, True), GradedAnswer(math.nan, True)] * 5
    )
    assert fitted.is_unsure(-math.inf)
    assert not fitted.is_unsure(0.0)
    with pytest.raises(RegardError, match="needs 1 or more answers"):
        calibrate([])


def test_a_damaged_file_is_named(tmp_path):
    for text in ("[", "[1]", '{"slope": 1}', '{"slope": 1e999}', "null"):
        (tmp_path / "calibration.json").write_text(text)
        with pytest.raises(FileError, match=r"calibration\.json: needs a calibration"):
            load_calibration(tmp_path)
    whole = Calibration(slope=1.0, offset=2.0, threshold=0.5, examples=9)
    save_calibration(tmp_path, whole)
    assert load_calibration(tmp_path) == whole
