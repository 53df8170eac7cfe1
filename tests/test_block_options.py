"""Every option of a block: each engine either computes it as the modules do or refuses it by name.

The values come from the types of the fields, so an option that is added is tried without a line.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from costs.test_cost import counted
from option_cases import values
from torch.testing import assert_close

import regard as rg
from regard import models
from regard.decode import AudioStream, make_stepper
from regard.decode.cpu import CpuDecoder, CpuState
from regard.decode.gpu import buffers
from regard.decode.gpu import engine as gpu
from regard.decode.language_stepper import GpuState
from regard.errors import ConfigError
from regard.models.config import StackConfig, unimplemented_option
from regard.models.onnx.export import EXPORTERS

VOCAB, SIZES = 11, {"layers": 2, "dim": 16, "heads": 2}


def tokens(time: int = 5) -> torch.Tensor:
    return torch.randint(VOCAB, (2, time))


PRESETS: dict[type, tuple[StackConfig, Callable[[], tuple[torch.Tensor, ...]]]] = {
    models.Translator: (models.translator_tiny(VOCAB, **SIZES), lambda: (tokens(), tokens(4))),
    models.LanguageModel: (
        models.language_tiny(VOCAB, **SIZES | {"head_dim": 16}),
        lambda: (tokens(),),
    ),
    models.Classifier: (models.classifier_tiny(VOCAB, classes=3, **SIZES), lambda: (tokens(),)),
    models.VisionTransformer: (
        models.vision_tiny(classes=3, image_size=12, **SIZES),
        lambda: (torch.randn(2, 1, 12, 12),),
    ),
    models.Recogniser: (models.recogniser_tiny(VOCAB, **SIZES), lambda: (torch.randn(2, 20, 40),)),
    models.SpeechEncoder: (
        models.SpeechEncoderConfig(max_positions=20, **SIZES),
        lambda: (torch.randn(2, 20, 80),),
    ),
}
EXPORTED = [kind for kind in PRESETS if kind in EXPORTERS]
each_model = pytest.mark.parametrize("kind", PRESETS, ids=lambda kind: kind.__name__)


def each_option(config: type) -> Any:
    cases = values(config)
    ids = [f"{name}={value}" for name, value in cases]
    return pytest.mark.parametrize(("name", "value"), cases, ids=ids)


def made(kind: type, std: float = 0.3, **changes: Any) -> Any:
    if changes.keys() & {"rope_dim", "rope_scaling", "rotate_half"}:  # without it they do nothing
        changes |= {"rope_theta": 50.0}
    model = models.build(replace(PRESETS[kind][0], **changes)).eval()
    for parameter in model.parameters():  # gains of one and biases of zero would hide a mistake
        torch.nn.init.normal_(parameter, std=std)
    return model


def computes(name: str, engine: Callable[[], Any]) -> bool:
    """Whether an engine takes an option; one that it does not declare is refused by name."""
    try:
        engine()
    except ConfigError as error:
        if not str(error).startswith(f"{name}: needs "):
            raise
        return False
    return True


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    assert_close(a, b, atol=1e-4, rtol=1e-4)


@each_option(models.TranslatorConfig)
@torch.no_grad()
def test_steps_of_a_translator_match_the_model(name, value):
    model, source, target = made(models.Translator, **{name: value}), tokens(), tokens(4)
    stepper, lengths, steps = make_stepper(model), torch.tensor([5, 2]), []
    state = stepper.start(source, lengths)
    refusal = unimplemented_option(model.config, CpuDecoder.options)
    assert isinstance(state, CpuState) == (refusal is None)
    assert refusal in (None, name)
    for token in target.unbind(1):
        logits, state = stepper.step(token, state)
        steps.append(logits)
    close(torch.stack(steps, 1), model(source, target, lengths))


@each_option(models.LanguageConfig)
@pytest.mark.parametrize("engine", ["modules", "gpu"])
@torch.no_grad()
def test_steps_of_a_language_model_match_the_model(name, value, engine, monkeypatch):
    if engine == "gpu":
        pytest.importorskip("triton")
        monkeypatch.setattr(gpu, "_TRY_ON_CPU", True)
        monkeypatch.setattr(buffers, "MIN_CAPACITY", 8)
    model, prompt, steps = made(models.LanguageModel, **{name: value}), tokens(4), []
    stepper = make_stepper(model)
    state = stepper.start(prompt[:, :3])
    refusal = unimplemented_option(model.config, gpu.CudaGraphEngine.options)
    assert isinstance(state, GpuState) == (engine == "gpu" and refusal is None)
    for token in prompt[:, 2:].unbind(1):
        logits, state = stepper.step(token, state)
        steps.append(logits.clone())
    close(torch.stack(steps, 1), model(prompt)[:, 2:])


@each_option(models.RecogniserConfig)
@torch.no_grad()
def test_a_stream_matches_the_whole_recording(name, value):
    if not computes(name, lambda: AudioStream(made(models.Recogniser, **{name: value}))):
        return
    model, wave = made(models.Recogniser, **{name: value}), torch.randn(7000)
    stream = AudioStream(model)
    state, outputs = stream.start(), []
    for piece in wave.split(999):
        log_probs, state = stream.step(piece, state)
        outputs.append(log_probs)
    outputs.append(stream.finish(state))
    close(torch.cat(outputs), model.forward_waveform(wave[None])[0][0])


@pytest.mark.parametrize("kind", EXPORTED, ids=lambda kind: kind.__name__)
def test_exports_match_the_model(kind, tmp_path):
    for name, value in values(type(PRESETS[kind][0])):
        made_one = partial(made, kind, std=0.15, **{name: value})
        computes(name, lambda make=made_one: models.export_onnx(make(), tmp_path))  # against torch


@each_model
def test_costs_match_torchs_counter(kind):
    config, inputs = PRESETS[kind]
    for name, value in values(type(config)):
        if not computes(name, partial(made, kind, **{name: value})):
            continue
        model, arguments = made(kind, **{name: value}), inputs()
        size = 12 if kind is models.VisionTransformer else arguments[0].shape[1]
        count = partial(rg.cost, model, source=size, target=4, batch=2)
        if computes(name, count):
            assert count().multiply_adds == counted(model, *arguments), name
            assert count().parameters == sum(p.numel() for p in model.parameters()), name


@each_model
def test_an_option_that_nobody_implements_is_refused_by_name(kind, tmp_path):
    config = PRESETS[kind][0]

    @dataclass(frozen=True, kw_only=True)
    class Extended(type(config)):
        novel: bool = False

    model = made(kind)
    model.config = Extended(**asdict(config), novel=True)
    with pytest.raises(ConfigError, match="novel: needs False to be counted, got True"):
        rg.cost(model)
    if kind in EXPORTERS:
        with pytest.raises(ConfigError, match="novel: needs False to export, got True"):
            models.export_onnx(model, tmp_path)
    if kind is models.Recogniser:
        with pytest.raises(ConfigError, match="novel: needs False for a stream, got True"):
            AudioStream(model)
    engines = {models.Translator: CpuDecoder, models.LanguageModel: gpu.CudaGraphEngine}
    if kind in engines:
        refusal = unimplemented_option(model.config, engines[kind].options)
        assert refusal == "novel"
