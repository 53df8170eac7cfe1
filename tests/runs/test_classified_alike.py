"""Evaluation images, written as files, get the same probabilities from `classify`."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from typer.testing import CliRunner

import regard as rg
from regard.cli import app
from regard.data.content.glyphs.fonts import find_fonts, load_font
from regard.runs.loading import PRETRAINED_FOLDER
from regard.tasks.classification.evaluator import top_log_odds
from regard.tasks.classification.pipeline import read_run_image
from regard.train.losses import classification_losses

LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"  # 0 and O, 1 and I are one shape in some faces


def classify(*args):
    return CliRunner().invoke(app, ["classify", *map(str, args)])


def answers(done) -> list[list[str]]:
    return [line.split("\t")[1:] for line in done.stdout.splitlines()]


def test_files_of_evaluation_pictures_get_the_same_classes_and_probabilities(tmp_path):
    run = rg.load("glyphs")
    data = replace(run.recipe.data, valid_size=24)
    evaluator = data.evaluator(None, "valid")
    files = [tmp_path / f"{n}.png" for n in range(24)]
    for n, file in enumerate(files):
        data.source().draw_page("valid", f"valid/{n}")[0].save(file)
    rows = answers(classify("glyphs", *files, "--top", 1))
    chances, classes = evaluator.logits(run.model, evaluator.images).softmax(-1).max(-1)
    assert [name for name, _ in rows] == [data.classes[n] for n in classes]
    assert np.allclose([float(x) for _, x in rows], chances.numpy(), atol=6e-5)  # four decimals
    graded = evaluator.grade(run.model, data.is_correct)[:24]
    confidence = [prediction.confidence for prediction in run.classify(files)]
    want = [run.calibration.confidence(one.score) for one in graded]
    assert np.allclose(confidence, want, atol=1e-4)


def test_clothes_are_read_as_they_are(tmp_path):
    """Cutting and polarity belong to the data of a run: pictures of others are taken whole."""
    pixels = np.random.default_rng(0).integers(0, 255, (28, 28), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    config = rg.models.vision_tiny(classes=10)
    model = rg.models.VisionTransformer(config).eval()
    recipe = rg.tasks.recipe("fashion-vit")
    run = rg.runs.Run(tmp_path, recipe, model, None, [], {})
    image = read_run_image(run, tmp_path / "a.png", size=28)
    assert torch.equal(image[0], torch.from_numpy(pixels) / 255)
    assert torch.equal(read_run_image(run, tmp_path / "a.png", size=28, invert=True), 1 - image)
    (prediction,) = run.classify(tmp_path / "a.png")
    assert prediction.confidence is None
    assert not prediction.unsure


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    """Files as people make them, in faces that were never trained on, dark on light and not."""
    folder = tmp_path_factory.mktemp("letters")
    looks = ((0, 255, 40), (255, 0, 24), (30, 200, 90), ((200, 30, 30), (250, 250, 240), 64))
    for n, letter in enumerate(LETTERS):
        ink, ground, size = looks[n % len(looks)]
        face = find_fonts("test", characters=LETTERS)[n % 3]
        page = Image.new("RGB" if isinstance(ink, tuple) else "L", (3 * size, 2 * size), ground)
        ImageDraw.Draw(page).text((size // 3 + 5 * n % size, 7), letter, ink, load_font(face, size))
        page.save(folder / f"{letter}.png")
    return folder


def test_letters_of_an_unseen_face_are_read_without_a_hint_and_without_a_warning(letters):
    files = sorted(letters.glob("*.png"))
    done = classify("glyphs", *files, "--top", 1)
    right = [name == file.stem for (name, _), file in zip(answers(done), files, strict=True)]
    warned = done.stderr.count("regard: warning:")
    assert sum(right) >= len(files) - 1
    assert warned <= 3


def foreign(n: int) -> Image.Image:
    """Noise, blank paper, stripes, circles and a photograph's soft spots: made here."""
    rng = np.random.default_rng(n)
    y, x = np.mgrid[:48, :48]
    circles = Image.new("L", (48, 48), 255)
    for box in ((2, 2, 40, 30), (10, 20, 45, 45), (18, 4, 30, 44)):
        ImageDraw.Draw(circles).ellipse(box, outline=0, width=2)
    kinds = (
        rng.normal(128, 40, (48, 48)),
        255 * (rng.random((48, 48)) < 0.2),
        np.full((48, 48), 200),
        127 + 120 * np.sin(x / 3 + y / 5),
        np.asarray(circles),
        np.asarray(Image.fromarray(rng.integers(0, 255, (4, 4), np.uint8)).resize((48, 48))),
    )
    return Image.fromarray(np.clip(kinds[n % len(kinds)], 0, 255).astype(np.uint8))


def test_what_is_no_letter_is_a_warning_and_exit_code_1(tmp_path):
    files = [tmp_path / f"{n}.png" for n in range(24)]
    for n, file in enumerate(files):
        foreign(n).save(file)
    done = classify("glyphs", *files)
    assert done.exit_code == 1
    lines = [line for line in done.stderr.splitlines() if line.startswith("regard: warning: ")]
    assert len(lines) >= 22
    assert "0.png: confidence 0." in lines[0]
    assert lines[0].endswith("; the class may be wrong")


def test_a_run_without_a_calibration_never_warns(tmp_path):
    shutil.copytree(PRETRAINED_FOLDER / "glyphs", tmp_path / "run")
    assert json.loads((tmp_path / "run" / "calibration.json").read_text())["examples"] > 1000
    (tmp_path / "run" / "calibration.json").unlink()
    foreign(0).save(tmp_path / "noise.png")
    done = classify(tmp_path / "run", tmp_path / "noise.png")
    assert (done.exit_code, done.stderr) == (0, "")


def test_log_odds_and_the_loss_of_no_class_are_what_their_formulas_say():
    logits = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    p = logits.softmax(-1)
    best = p.max(-1).values
    assert torch.allclose(top_log_odds(logits).double(), (best / (1 - best)).log(), atol=1e-5)
    labels = torch.tensor([0, -1, 3, -1, 2])
    want = [-(p[n].log().mean() if y < 0 else p[n, y].log()) for n, y in enumerate(labels)]
    assert torch.allclose(
        classification_losses(logits, labels).double(), torch.stack(want), atol=1e-5
    )
    known = torch.tensor([0, 1, 3, 3, 2])
    theirs = torch.nn.functional.cross_entropy(
        logits.float(), known, reduction="none", label_smoothing=0.2
    )
    assert torch.allclose(classification_losses(logits, known, 0.2), theirs, atol=1e-5)
