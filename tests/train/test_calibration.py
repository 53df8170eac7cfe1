"""Calibration of confidence on held-out answers, and the threshold for warnings."""

import math

import pytest
import torch

from regard.errors import FileError, RegardError
from regard.train import Calibration, GradedAnswer, calibrate, load_calibration, save_calibration


def sample_answers(slope: float, offset: float, count: int = 4000) -> list[GradedAnswer]:
    """Answers that are correct with probability sigmoid(slope · score + offset)."""
    scores = 3.0 * torch.randn(count, dtype=torch.float64) - 1.0  # the fit is on standardised ones
    correct = torch.rand(count) < (slope * scores + offset).sigmoid()
    return [GradedAnswer(s, r) for s, r in zip(scores.tolist(), correct.tolist(), strict=True)]


def test_platt_scaling_recovers_the_generating_curve():
    calibration = calibrate(sample_answers(2.0, 0.5))
    assert calibration.slope == pytest.approx(2.0, rel=0.1)
    assert calibration.offset == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("slope", [0.2, 1.0, 5.0])
def test_the_slope_says_how_much_a_score_counts(slope: float):
    calibration = calibrate(sample_answers(slope, -0.5, 8000))
    assert calibration.slope == pytest.approx(slope, rel=0.2)
    one, two = calibration.confidence(0.3), calibration.confidence(0.8)
    logits = [math.log(p / (1 - p)) for p in (one, two)]
    assert logits[1] - logits[0] == pytest.approx(0.5 * calibration.slope)
    assert logits[0] == pytest.approx(0.3 * calibration.slope + calibration.offset)


def test_confidence_is_calibrated():
    calibration, new = calibrate(sample_answers(1.5, -0.3)), sample_answers(1.5, -0.3, 20_000)
    middle = [answer for answer in new if 0.6 < calibration.confidence(answer.score) < 0.7]
    assert sum(answer.correct for answer in middle) / len(middle) == pytest.approx(0.65, abs=0.06)


def test_threshold_flags_incorrect_answers_and_at_most_5_percent_of_correct_ones():
    graded = [GradedAnswer(float(n), n >= 100) for n in range(300)]
    calibration = calibrate(graded)
    assert all(calibration.is_unsure(answer.score) == (not answer.correct) for answer in graded)
    mixed = calibrate(graded + [GradedAnswer(250.0, False)] * 5)
    kept = [not mixed.is_unsure(answer.score) for answer in graded if answer.correct]
    assert sum(kept) / len(kept) >= 0.95
    # flagged up to the tenth of 200 correct answers, and no further
    near, far = GradedAnswer(108.5, False), GradedAnswer(115.5, False)
    both = calibrate([*graded, near, far])
    assert (both.is_unsure(near.score), both.is_unsure(far.score)) == (True, False)


def test_a_higher_score_never_lowers_the_confidence():
    calibration = calibrate([GradedAnswer(-1.0, True), GradedAnswer(1.0, False)] * 20)
    assert calibration.slope == 0.0
    assert calibration.confidence(-1.0) == calibration.confidence(1.0) == pytest.approx(0.5)


@pytest.mark.parametrize("correct", [True, False])
def test_answers_of_one_class_do_not_yield_certainty(correct: bool):
    calibration = calibrate([GradedAnswer(-0.5, correct), GradedAnswer(-0.7, correct)])
    assert 0.05 < calibration.confidence(-0.6) < 0.95


def test_infinite_and_nan_scores_are_handled():
    calibration = calibrate(
        [GradedAnswer(-math.inf, False), GradedAnswer(0.0, True), GradedAnswer(math.nan, True)] * 5
    )
    assert calibration.is_unsure(-math.inf)
    assert not calibration.is_unsure(0.0)
    with pytest.raises(RegardError, match="needs 1 or more answers"):
        calibrate([])


def test_a_damaged_calibration_file_is_named(tmp_path):
    for text in ("[", "[1]", '{"slope": 1}', '{"slope": 1e999}', "null"):
        (tmp_path / "calibration.json").write_text(text)
        with pytest.raises(FileError, match=r"calibration\.json: needs a calibration"):
            load_calibration(tmp_path)
    whole = Calibration(slope=1.0, offset=2.0, threshold=0.5, examples=9)
    save_calibration(tmp_path, whole)
    assert load_calibration(tmp_path) == whole
