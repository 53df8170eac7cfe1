"""Evaluating a run again gives its recorded scores; its mistakes are mistakes."""

import json
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

import regard as rg
from regard.cli import app
from regard.errors import ConfigError
from regard.runs import evaluate_run, fit, load_run, override_settings
from regard.runs.evaluate import evaluate_model
from regard.runs.report.facts import collect_facts
from regard.tasks import SearchConfig, Transcript, recipe, translate_texts
from regard.tasks.recognition import evaluator
from regard.tasks.recognition.evaluator import RecognitionEvaluator
from regard.train import Calibration

SMALL = [
    *(
        "languages=en,de",
        "kinds=duration",
        "vocab_texts=300",
        "valid_size=4",
        "test_size=6",
        "max_new_tokens=6",
    ),
    *("device=cpu", "dim=16", "heads=2", "layers=1", "decoder_layers=1", "ffn_dim=16"),
    *("steps=4", "batch_tokens=256", "warmup=2"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs") / "a"
    fit(override_settings(recipe("phrases"), SMALL), place)
    return place


@pytest.mark.parametrize("part", ["valid", "test"])
def test_evaluating_again_gives_the_recorded_scores(folder, part):
    assert evaluate_run(load_run(folder), part).scores == load_run(folder).result[part]


def test_mistakes_are_the_wrong_predictions(folder):
    run = load_run(folder)
    pairs = list(run.recipe.data.source(6).examples("test", 0))
    texts, languages = [p.source for p in pairs], [p.language for p in pairs]
    for width in (1, 3):
        search = SearchConfig(beam_width=width, max_new_tokens=6)
        said = translate_texts(run.model, run.tokenizer, texts, languages, search)
        wrong = [(p.target, s) for p, s in zip(pairs, said, strict=True) if p.target != s]
        found = evaluate_run(run, "test", beam_width=width)
        assert [(m.reference, m.prediction) for m in found.mistakes] == wrong
        assert found.mistakes[0].source == f"de: {pairs[0].source}"


def test_the_confidence_of_an_answer_is_calibrated():
    images = torch.tensor([[1.0, 0.0], [0.0, 3.0]]).mul(255 / 3).byte()[:, None, None]
    evaluator = rg.tasks.ClassificationEvaluator(images, torch.tensor([0, 1]), ["cat", "dog"])
    calibration = Calibration(slope=2.0, offset=-1.0, threshold=0.5, examples=9)
    raw = [score for _, score in evaluator.predict_scored(torch.nn.Flatten())]
    given = torch.nn.Flatten(), evaluator, "test", str.__eq__
    answers = evaluate_model(*given, calibration).answers
    assert [x.confidence for x in answers] == [calibration.confidence(score) for score in raw]
    plain = evaluate_model(*given).answers
    assert answers[0].confidence < plain[0].confidence < 1.0


def test_the_command_shows_scores_and_some_mistakes(folder):
    done = CliRunner().invoke(app, ["evaluate", str(folder), "--split", "valid", "--mistakes", "1"])
    assert done.exit_code == 0, done.output
    scores = json.loads((folder / "result.json").read_text())["valid"]
    assert f"exact {scores['exact']:.4f}" in done.output
    assert f"signature {scores['signature']}" in done.output
    assert done.output.count("  reference   ") == 1
    assert "and 3 more" in done.output


def test_audio_and_image_runs_give_their_recorded_scores(tmp_path):
    sizes = [
        "steps=1",
        "valid_size=6",
        "test_size=6",
        "device=cpu",
        "dim=16",
        "heads=2",
        "layers=1",
    ]
    for name, more in (("morse", []), ("glyphs", ["train_images=60"])):
        fit(override_settings(recipe(name), [*sizes, *more]), tmp_path / name)
        found = evaluate_run(load_run(tmp_path / name))
        assert found.scores == load_run(tmp_path / name).result["test"]
    with pytest.raises(ConfigError, match="beam_width: needs a run with a beam search, got one of"):
        evaluate_run(load_run(tmp_path / "glyphs"), beam_width=2)


def test_a_task_decides_once_what_is_correct(tmp_path, monkeypatch):
    """`evaluate`, report and calibration count alike: a tenth of a transcript may differ."""
    run = rg.load("morse", device="cpu")
    data = replace(run.data, test_size=4, min_letters=20, max_letters=20)
    run = replace(run, recipe=replace(run.recipe, data=data))
    letters = data.evaluator(run.tokenizer, "test").references
    edits = (0, 2, 3, 20)  # of 20 letters
    answers = ["#" * n + text[n:] for n, text in zip(edits, letters, strict=True)]
    monkeypatch.setattr(
        RecognitionEvaluator, "predict_scored", lambda self, model: [(x, 0.0) for x in answers]
    )
    found = run.evaluate("test")
    assert [answer.is_correct for answer in found.answers] == [True, True, False, False]
    assert [answer.prediction for answer in found.mistakes] == answers[2:]
    assert sorted(x.prediction for x in collect_facts(run).mistakes) == sorted(answers[2:])
    run.report(tmp_path / "report.html")
    assert "2 of 4" in (tmp_path / "report.html").read_text()
    heard = [Transcript(text, 0.0) for text in answers]
    monkeypatch.setattr(
        evaluator, "transcribe_batch_detailed", lambda model, tokenizer, audio: [
            *heard, *(Transcript("E", -1.0) for _ in audio[4:])
        ]
    )  # fmt: skip
    graded = data.evaluator(run.tokenizer, "test").grade(run.model, data.is_correct)
    assert [answer.correct for answer in graded[:4]] == [True, True, False, False]
    assert not any(answer.correct for answer in graded[8:])  # noise without a transmission


def test_a_recogniser_that_answers_nothing_has_scores_and_no_confidence(tmp_path, monkeypatch):
    """After a few steps a model gives blanks only: nothing can be calibrated on them."""
    monkeypatch.setattr(
        evaluator, "transcribe_batch_detailed", lambda *args: [Transcript("", 0.0) for _ in args[2]]
    )
    settings = ["steps=1", "valid_size=4", "test_size=4", "device=cpu", "dim=16", "heads=2"]
    small = override_settings(recipe("morse"), [*settings, "layers=1"])
    outcome = fit(small, tmp_path / "run")
    assert outcome.scores["exact"] == 0
    run = load_run(tmp_path / "run")
    assert (run.calibration, run.result["test"]) == (None, outcome.scores)
    found = run.evaluate("valid")
    assert [x.confidence for x in found.answers] == [None] * len(found.answers)


def test_a_tenth_of_the_characters_of_a_transcript_may_be_wrong():
    for data in (recipe("speech").data, recipe("morse").data):
        assert data.is_correct("abcdefghi", "abcdefghij")
        assert not data.is_correct("bcdefghi", "abcdefghij")
        assert not data.is_correct("abcdefgh", "abcdefghi")  # 1 of 9
        assert not data.is_correct("a", "")
    assert not recipe("phrases").data.is_correct("abcdefghi", "abcdefghij")


# ---- errors


@pytest.mark.usefixtures("users_view")
def test_invalid_splits_and_beams_raise(folder):
    with pytest.raises(ConfigError, match="beam_width: needs .* 1 or more, got 0"):
        evaluate_run(load_run(folder), beam_width=0)
    done = CliRunner().invoke(app, ["evaluate", str(folder), "--split", "train"])
    assert (done.exit_code, done.stderr) == (
        2,
        "regard: split: needs one of valid, test, got 'train'\n",
    )
