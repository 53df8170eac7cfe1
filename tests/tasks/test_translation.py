"""One search, one normalisation and one confidence for evaluation and `regard translate`."""

import math
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import regard as rg
from regard.cli import app
from regard.decode import DecodeResult
from regard.runs import TranslationPipeline, evaluate_run, fit, load_run, override_settings
from regard.tasks import recipe
from regard.tasks.translation.search import raw_scores
from regard.train import Calibration, GradedAnswer, calibration_metrics, save_calibration

TEXTS = ["ein Haus", "zwei rote Äpfel", "der Hund schläft", "Drei Katzen", "ein roter Hund"]
SMALL = [
    *(
        "device=cpu",
        "steps=150",
        "warmup=20",
        "batch_tokens=256",
        "vocab_size=300",
        "dim=16",
        "heads=2",
        "hidden=16",
    ),
    *(
        "layers=1",
        "decoder_layers=1",
        "max_new_tokens=12",
        "dropout=0",
        "evaluate_every=150",
        "lr=1e-2",
    ),
]


@pytest.fixture(scope="module")
def lower(tmp_path_factory) -> str:
    """A run on own pairs that forgets the case."""
    place = tmp_path_factory.mktemp("pairs")
    for part in ("train", "val", "test_2016_flickr"):
        (place / f"{part}.de").write_text("\n".join(TEXTS * 4) + "\n")
        (place / f"{part}.en").write_text("\n".join(["A", "B", "C", "D", "E"] * 4) + "\n")
    small_data = override_settings(
        recipe("multi30k-de-en-gru-attention"), [f"folder={place}", "vocab_size=300"]
    )
    small = [x for x in SMALL if not x.startswith(("heads", "decoder_layers"))]
    fit(override_settings(small_data, small), place / "run")
    return str(place / "run")


def regard(*args: str, **given):
    return CliRunner().invoke(app, [*args], **given)


# ---- normalisation


def test_input_is_lower_cased_as_in_training(lower):
    answers = [
        regard("translate", lower, "--to", "en", *texts).stdout
        for texts in (TEXTS, [t.upper() for t in TEXTS], [t.lower() for t in TEXTS])
    ]
    assert answers[0].strip()
    assert answers[0] == answers[1] == answers[2]


def test_looking_reads_the_same_tokens(lower):
    reader = rg.load(lower).text_model
    tokens = [reader.look(t, to="en").sites[0].query_tokens for t in ("EIN HAUS", "ein haus")]
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("part", ["valid", "test"])
def test_evaluation_and_command_give_the_same_answers(lower, part, tmp_path):
    run = load_run(lower)
    data = run.recipe.data
    evaluator = data.evaluator(run.tokenizer, part)
    file = Path(data.folder) / getattr(data, part)[0]
    raw = [line for line in file.read_text().splitlines() if line]
    (tmp_path / "raw.txt").write_text("\n".join(raw) + "\n")
    done = regard("translate", lower, "--to", "en", str(tmp_path / "raw.txt"))
    assert done.stdout.splitlines() == evaluator.predict(run.model)


# ---- confidence


def test_every_run_of_a_translator_is_calibrated_on_its_own_held_out_pairs(lower):
    run = load_run(lower)
    assert run.calibration is not None
    assert run.calibration.examples == 40  # 20 pairs, and as many of shuffled letters
    (answer,) = TranslationPipeline(run, ["en"]).translate(TEXTS[:1])[0][0]
    assert answer.confidence == run.calibration.confidence(answer.raw_score)
    found = evaluate_run(run)
    assert set(found.confidence) <= {"ece", "auroc", "incorrect_flagged", "correct_flagged"}
    assert "confidence: ece" in regard("evaluate", lower).stdout


def unsure(folder: str, threshold: float):
    save_calibration(folder, Calibration(slope=1.0, offset=0.0, threshold=threshold, examples=9))


@pytest.fixture
def doubtful(lower, tmp_path) -> str:
    for file in load_run(lower).folder.iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    unsure(str(tmp_path), 1.0)
    return str(tmp_path)


def test_an_answer_of_low_confidence_comes_with_a_warning(doubtful):
    done = regard("translate", doubtful, "--to", "en", "ein Haus")
    assert (done.exit_code, len(done.stdout.splitlines())) == (1, 1)
    confidence = (
        TranslationPipeline(load_run(doubtful), ["en"]).translate(["ein Haus"])[0][0][0].confidence
    )
    assert done.stderr == (
        f"regard: warning: 'ein Haus' (en): confidence {confidence:.2f} is below 1.00; "
        "the translation may be wrong\n"
    )
    unsure(doubtful, 0.0)
    done = regard("translate", doubtful, "--to", "en", "ein Haus")
    assert (done.exit_code, done.stderr) == (0, "")


def test_a_file_gets_a_few_warnings_and_their_count(doubtful, tmp_path):
    done = regard("translate", doubtful, "--to", "en", "-", input="ein Haus\n" * 9)
    assert done.exit_code == 1
    assert len(done.stdout.splitlines()) == 9
    *few, last = done.stderr.splitlines()
    assert [line.partition(" (en)")[0] for line in few] == [
        f"regard: warning: line {n}" for n in range(1, 6)
    ]
    assert last == "regard: warning: 9 outputs of 9 inputs are below the confidence threshold"
    (tmp_path / "a.po").write_text('msgid "ein Haus"\nmsgstr ""\n')
    done = regard("translate", doubtful, "--to", "en", str(tmp_path / "a.po"))
    assert done.exit_code == 1
    assert "skipped: 'ein Haus': confidence 0." in done.stderr
    assert "#, fuzzy" not in done.stdout


def test_a_run_without_calibration_never_warns(doubtful):
    (load_run(doubtful).folder / "calibration.json").unlink()
    assert (
        TranslationPipeline(load_run(doubtful), ["en"]).translate(["ein Haus"])[0][0][0].confidence
        is None
    )
    done = regard("translate", doubtful, "--to", "en", "ein Haus")
    assert (done.exit_code, done.stderr) == (0, "")


def test_answers_near_the_reference_are_graded_as_correct_for_parallel_text():
    near, exact = (rg.tasks.recipe(name).data for name in ("multi30k-en-de", "phrases"))
    both = "a dog runs in the grass", "a dog is running in the grass"
    assert near.is_correct(*both)
    assert not exact.is_correct(*both)
    assert not near.is_correct("the moon", "a dog is running in the grass")


def test_calibration_metrics_by_hand():
    calibration = Calibration(slope=1.0, offset=0.0, threshold=0.5, examples=9)
    graded = [
        GradedAnswer(0.0, True),
        GradedAnswer(0.0, False),
        GradedAnswer(-9.0, False),
        GradedAnswer(9.0, True),
    ]
    found = calibration_metrics(graded, calibration)
    assert found["auroc"] == (0.5 + 1 + 1 + 1) / 4
    assert found["ece"] < 1e-3  # half of those at one half are right
    assert (found["incorrect_flagged"], found["correct_flagged"]) == (0.5, 0.0)


def test_phrases_are_graded_on_cldr_natural_and_ood_texts():
    data = recipe("phrases-natural").data
    small = override_settings(recipe("phrases"), ["valid_size=7", "max_new_tokens=2"]).data
    evaluator = small.evaluator(rg.data.ByteTokenizer(data.languages), "valid")
    model = rg.models.Translator(rg.models.translator_tiny(vocab=272)).eval()
    graded = evaluator.grade(model, small.is_correct)
    assert len(graded) == 28  # CLDR's forms, natural ones, these with slips, and foreign texts
    assert not any(one.correct for one in graded)
    assert {"natural_exact", "ood_empty"} & set(
        evaluator.score(model, evaluator.predict(model))
    ) == set()


def test_the_raw_score_of_an_empty_answer_is_that_of_any_other():
    empty = [
        DecodeResult(*map(torch.tensor, ([[2]], [0], [p], [True]))) for p in (-1e-3, -2.0, 0.0)
    ]
    sure, doubtful, certain = (float(raw_scores(one)) for one in empty)
    assert certain == pytest.approx(-20, abs=1e-3)
    assert certain < sure < doubtful
    assert doubtful == pytest.approx(math.log(math.exp(2) - 1))  # logit of 1 - exp(-2)
