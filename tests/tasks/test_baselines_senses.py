"""Baselines of images and of spoken words."""

import pytest
import soundfile
import torch
from PIL import Image

import regard as rg
from regard.data import AudioExample, seeded_generator
from regard.errors import ConfigError
from regard.runs.data_curve import data_curve
from regard.tasks.baselines.image_models import fit_images
from regard.tasks.baselines.kernel_speech import fit_speech_kernel


def tones(pitches, count):
    """Recordings of two tones each, named by their order, at many pitches, levels and lengths."""
    rng, audio = seeded_generator(7), []
    for n in range(count):
        (name, (low, high)), scale = list(pitches.items())[n % len(pitches)], 0.9 + 0.02 * (n % 11)
        at = torch.arange(1500 + 100 * (n % 7)) * scale
        wave = torch.cat([(at * low).sin(), (at * high).sin(), torch.zeros(400 * (n % 3))])
        wave = wave * 10 ** -(n % 4 / 4) + 1e-3 * torch.randn(len(wave), generator=rng)
        audio.append(AudioExample(wave, name, 8000))
    return audio


def test_a_kernel_machine_tells_words_by_the_order_of_their_sounds():
    audio = tones({"up": (0.2, 0.6), "down": (0.6, 0.2), "low": (0.2, 0.2)}, 60)
    held_out = [example.text for example in audio[45:]]
    assert fit_speech_kernel(audio[:45], audio[45:]) == held_out
    silence = AudioExample(torch.zeros(10), "", 8000)  # shorter than a frame
    assert fit_speech_kernel(audio, [silence])[0] in {"up", "down", "low"}


def test_images_are_told_by_pixels_or_by_shapes_whichever_is_better_on_valid():
    rng = seeded_generator(0)
    labels = torch.arange(600) % 2
    noise = torch.randint(0, 60, (600, 3, 12, 12), generator=rng)
    level = (noise + 130 * labels[:, None, None, None]).to(torch.uint8)
    split = level[:400], labels[:400]
    name, model = fit_images(split, split, 2)
    assert name == "linear model on pixels"
    assert torch.equal(model(level[400:] / 255).argmax(-1), labels[400:])
    shapes = noise.clone()  # a bar, upright or lying, anywhere and of either sign
    for image, label in zip(shapes, labels.tolist(), strict=True):
        row, column = torch.randint(0, 7, (2,), generator=rng).tolist()
        bar = image[:, row : row + 5, column] if label else image[:, row, column : column + 5]
        bar += 190
    shapes = shapes.to(torch.uint8)
    name, model = fit_images((shapes[:400], labels[:400]), (shapes[400:500], labels[400:500]), 2)
    right = (model(shapes[500:] / 255).argmax(-1) == labels[500:]).float().mean()
    assert name == "small convolutional network"
    assert right > 0.9


def test_the_baseline_of_images_is_a_run_that_is_applied_and_loaded_to_the_bit(tmp_path):
    for split, count in (("train", 40), ("valid", 8), ("test", 8)):
        for n in range(count):
            place = tmp_path / "data" / split / ("dark", "light")[n % 2]
            place.mkdir(parents=True, exist_ok=True)
            Image.new("L", (20, 16), 40 + 150 * (n % 2) + n).save(place / f"{n}.png")
    data = rg.tasks.ImagesTask(path=str(tmp_path / "data"), size=16)
    config = rg.models.ResNetConfig(classes=1)
    train = rg.train.TrainConfig(steps=1, monitor="accuracy")
    recipe = rg.tasks.Recipe(name="shades", data=data, model=config, train=train)
    outcome = rg.runs.fit(recipe, tmp_path / "run", skip=["card", "report"], baseline_only=True)
    assert outcome.scores["accuracy"] == 1.0
    run = rg.load(tmp_path / "run", device="cpu")
    assert run.classify(tmp_path / "data/test/dark/0.png")[0][0][0] == "dark"
    images = data.load().images["test"] / 255
    fitted = data.fit(0).fit_baseline()
    assert torch.equal(run.model(images), fitted.model(images))
    quarter = data.fit(0).with_share(0.25)
    assert len(quarter.train_split(0)[1]) == 10


def test_transcripts_that_differ_are_compared_with_the_most_frequent_which_has_no_curve(tmp_path):
    lines = []
    for split, count in (("train", 12), ("valid", 3), ("test", 4)):
        for n in range(count):
            rate, name = 8000, f"{split} {n}.wav"
            soundfile.write(tmp_path / name, torch.randn(rate // 2).mul(0.1).numpy(), rate)
            lines.append((split, f"{name}\t{'ab' if n % 3 else f'c{n}'}\n"))
        (tmp_path / f"{split}.tsv").write_text("".join(x for y, x in lines if y == split))
    data = rg.tasks.SpeechTask(folder=str(tmp_path), sample_rate=8000, n_mels=40)
    assert data.baseline("test") == ("the most frequent transcript", ["ab"] * 4)
    train = rg.train.TrainConfig(steps=1)
    model = rg.models.recogniser_tiny(vocab=2, n_mels=40, sample_rate=8000, cmvn_depth=12.0)
    recipe = rg.tasks.Recipe(name="a", data=data, model=model, train=train)
    with pytest.raises(ConfigError, match="learns for a curve, got the most frequent transcript"):
        data_curve(recipe)
