"""Image and audio models load as they were saved."""

from collections.abc import Callable
from dataclasses import asdict

import pytest
import torch
from torch import nn

from regard.models import (
    MLP,
    MLPConfig,
    Recogniser,
    ResNet,
    ResNetConfig,
    SpeechEncoder,
    SpeechEncoderConfig,
    VisionTransformer,
    load,
    recogniser_tiny,
    save,
    vision_tiny,
)

MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "vision": (lambda: VisionTransformer(vision_tiny(classes=3, head="mlp")), (2, 1, 28, 28)),
    "resnet": (lambda: ResNet(ResNetConfig(classes=3, width=8)), (2, 1, 28, 28)),
    "mlp": (lambda: MLP(MLPConfig(inputs=6, classes=3, hidden=4)), (2, 6)),
    "recogniser": (
        lambda: Recogniser(recogniser_tiny(vocab=5, chunk=3, left_chunks=None)),
        (2, 20, 40),
    ),
    "speech": (
        lambda: SpeechEncoder(SpeechEncoderConfig(layers=1, dim=8, heads=2, max_positions=10)),
        (2, 20, 80),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_saved_and_loaded_it_answers_the_same(name, tmp_path):
    make, shape = MODELS[name]
    model, x = make(), torch.randn(shape)
    model(x)  # in training mode, so that running means move too
    if isinstance(model, Recogniser):
        model.standardise.fit(x, torch.tensor([20, 20]))
    model.eval()
    again = load(save(model, tmp_path))
    assert type(again) is type(model)
    assert asdict(again.config) == asdict(model.config)
    torch.testing.assert_close(again(x), model(x), atol=0, rtol=0)
