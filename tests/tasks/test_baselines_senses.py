"""Baselines of images and of spoken words."""

import torch

from regard.data import AudioExample, seeded_generator
from regard.tasks.baselines.image_models import predict_images
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
    name, answers = predict_images(split, split, level[400:], 2)
    assert (name, answers) == ("linear model on pixels", labels[400:].tolist())
    shapes = noise.clone()  # a bar, upright or lying, anywhere and of either sign
    for image, label in zip(shapes, labels.tolist(), strict=True):
        row, column = torch.randint(0, 7, (2,), generator=rng).tolist()
        bar = image[:, row : row + 5, column] if label else image[:, row, column : column + 5]
        bar += 190
    shapes = shapes.to(torch.uint8)
    name, answers = predict_images(
        (shapes[:400], labels[:400]), (shapes[400:500], labels[400:500]), shapes[500:], 2
    )
    right = (torch.tensor(answers) == labels[500:]).float().mean()
    assert name == "small convolutional network"
    assert right > 0.9
