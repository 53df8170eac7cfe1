"""int8 weights: what is rounded, how far outputs move, and saved files."""

import os
import platform
import subprocess
import sys
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from int8_products import relative_error, wrong_products

import regard as rg
from regard import decode, models
from regard.errors import BackendError, FileError
from regard.nn import int8 as models_int8
from regard.nn.int8 import Int8Linear, Int8Readout, PackedInt8Linear, dequantize_int8, quantize_int8

KINDS = {
    "translator": models.translator_tiny(vocab=11, output_bias=True),
    "gated, not tied": models.translator_tiny(
        vocab=11, gated=True, tied=False, rope_theta=100.0, kv_heads=2, norm="rms", bias=False
    ),
    "language": models.language_tiny(vocab=11),
    "recurrent": models.recurrent_tiny(vocab=11, cell="lstm"),
}


@settings(max_examples=20)
@given(rows=st.integers(1, 9), dim=st.integers(1, 40), size=st.floats(1e-6, 1e6))
def test_rounding_twice_is_rounding_once(rows, dim, size):
    weight = size * torch.randn(rows, dim)
    whole, scale = quantize_int8(weight)
    again = dequantize_int8(whole, scale)
    assert (again - weight).abs().max() <= 0.51 * scale.max()
    for once, twice in zip((whole, scale), quantize_int8(again), strict=True):
        assert torch.equal(once, twice)


@torch.no_grad()
@settings(max_examples=20)
@given(rows=st.sampled_from([1, 2, 16, 17, 33]), dim=st.sampled_from([1, 7, 64, 200]))
def test_a_product_equals_that_of_rounded_rows(rows, dim):
    weight, bias = torch.randn(5, dim), torch.randn(5)
    product, (whole, scale) = PackedInt8Linear(weight, bias), quantize_int8(weight)
    near = torch.randint(-product.steps, product.steps + 1, (rows, dim))
    near[:, 0] = product.steps
    size = 2.0 ** torch.arange(rows)[:, None] / 1000  # each row has a size of its own
    want = size * (near.double() @ whole.double().mT * scale) + bias
    torch.testing.assert_close(product(size * near).double(), want, rtol=1e-5, atol=1e-5)
    off = (0.8 * torch.rand(near.shape) - 0.4) * (near.abs() < product.steps)
    between = product(size * (near + off))
    torch.testing.assert_close(between.double(), want, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_row_of_zeros_gives_the_bias_and_a_nan_stays_in_its_row():
    weight, bias = torch.randn(5, 8), torch.randn(5)
    for rows in (3, 20):
        x = torch.randn(rows, 8)
        x[0], x[1, 3] = 0, torch.nan
        y = PackedInt8Linear(weight, bias)(x)
        torch.testing.assert_close(y[0], bias)
        assert bool(y[1].isnan().all())
        assert bool(y[2:].isfinite().all())
    torch.testing.assert_close(PackedInt8Linear(weight, bias)(torch.zeros(1, 8))[0], bias)


@pytest.mark.parametrize("name", KINDS)
@torch.no_grad()
def test_logits_are_close_and_searches_match_the_model(name):
    model = models.build(KINDS[name]).eval()
    made = models.quantize(model)
    tokens, lengths = torch.tensor([[3, 4, 5], [6, 7, 0]]), torch.tensor([3, 2])
    written = torch.tensor([[1, 8, 9, 2], [1, 5, 5, 3]])
    given = (written,) if name == "language" else (tokens, written, lengths)
    whole, float_ = made(*given), model(*given)
    assert 0 < (whole - float_).abs().max() < 0.05 * float_.abs().max()
    stepper = decode.make_stepper(made)
    state = stepper.start(*((written[:, :1],) if name == "language" else (tokens, lengths)))
    for at in range(4):
        logits, state = stepper.step(written[:, at], state)
        # a last bit may turn a rounding: one step of one input
        torch.testing.assert_close(logits, whole[:, at], rtol=0, atol=0.02)


@torch.no_grad()
def test_the_fast_path_takes_integers(monkeypatch):
    model = models.quantize(models.build(KINDS["translator"]).eval())
    stepper = decode.make_stepper(model)
    state = stepper.start(torch.tensor([[3, 4, 5]]))
    calls = []
    right = PackedInt8Linear.__call__
    monkeypatch.setattr(PackedInt8Linear, "__call__", lambda s, x: calls.append(1) or right(s, x))
    stepper.step(torch.tensor([1]), state)
    assert len(calls) == 2 * 6 + 1


@pytest.mark.parametrize(
    "config",
    [
        models.translator_tiny(vocab=11),
        models.recurrent_tiny(vocab=11),
        models.vision_tiny(classes=3),
        models.recogniser_tiny(vocab=5),
    ],
    ids=lambda config: type(config).__name__,
)
def test_a_file_brings_back_the_same_numbers_at_a_quarter_of_the_size(config, tmp_path):
    model = models.build(config).eval()
    made = models.quantize(model)
    whole, float_ = models.save(made, tmp_path / "a"), models.save(model, tmp_path / "b")
    assert whole.stat().st_size < 0.35 * float_.stat().st_size
    again = models.load(tmp_path / "a")
    assert models.is_quantized(again)
    assert not models.is_quantized(models.load(tmp_path / "b"))
    for name, x in made.state_dict().items():
        assert torch.equal(again.state_dict()[name], x), name


def test_a_shared_table_stays_one_table(tmp_path):
    model = models.quantize(models.build(models.translator_tiny(vocab=11)))
    assert model.source_embedding.token_embeddings is model.target_embedding.token_embeddings
    models.save(model, tmp_path)
    again = models.load(tmp_path)
    assert again.source_embedding.token_embeddings is again.target_embedding.token_embeddings


def test_the_callers_model_and_rng_state_are_unchanged():
    model = models.build(models.translator_tiny(vocab=11)).train()
    before, rng_state = deepcopy(model.state_dict()), torch.random.get_rng_state()
    made = models.quantize(model)
    assert torch.equal(torch.random.get_rng_state(), rng_state)
    assert model.training
    assert not made.training
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert not models.is_quantized(model)


def test_gradients_run_in_float_with_dequantised_weights():
    layer = Int8Linear.from_linear(torch.nn.Linear(3, 2))
    x = torch.randn(4, 3, requires_grad=True)
    y = layer(x)
    torch.testing.assert_close(y, x @ layer.weight.mT + layer.bias)
    assert torch.autograd.grad(y.sum(), x)[0].shape == x.shape
    readout = Int8Readout.from_readout(rg.nn.Readout(3, 2))
    torch.testing.assert_close(readout(x), x @ readout.weight.mT)


@torch.no_grad()
def test_new_weights_are_packed_again_and_copies_have_their_own():
    layer, x = Int8Linear.from_linear(torch.nn.Linear(3, 2, bias=False)), torch.randn(1, 3)
    before, other = layer(x), deepcopy(layer)
    layer.weight.mul_(2)
    torch.testing.assert_close(layer(x), 2 * before)
    torch.testing.assert_close(other(x), before)


@torch.no_grad()
def test_streaming_recognition_equals_the_recording():
    model = models.quantize(rg.load("morse", device="cpu").model)
    sound = next(rg.data.Morse(snr=(10, 10)).examples("test", seed=0))
    wave = torch.as_tensor(sound.wave)
    transcriber = decode.Transcriber(model, rg.load("morse", device="cpu").tokenizer)
    text = "".join(map(transcriber.push, wave.split(800))) + transcriber.finish()
    assert text == sound.text


@pytest.mark.parametrize("name", ["phrases", "phrases-gru"])
def test_pretrained_models_still_translate(name):
    run = rg.load(name, device="cpu")
    made = replace(run, model=rg.models.quantize(run.model))
    texts = ["3 days", "March 5, 2024", "$12.50"]
    assert made.translate(texts, to=["de"]) == run.translate(texts, to=["de"])


def test_a_look_inside_sees_the_rounded_model():
    model = models.quantize(models.build(models.language_tiny(vocab=11)))
    with rg.look(model) as sight, torch.no_grad():
        model(torch.tensor([[1, 2, 3]]))
    assert len(sight.sites) == 2


@pytest.mark.usefixtures("users_view")
def test_unsupported_models_raise(monkeypatch, tmp_path):
    rg.runs.quantize_run(rg.load("glyphs", device="cpu"), tmp_path, score=False)
    with pytest.raises(FileError, match="needs to be without a run, got one"):
        rg.runs.quantize_run(rg.load("glyphs", device="cpu"), tmp_path, score=False)

    def none(*_):
        raise RuntimeError("no kernel\nat all")

    monkeypatch.setattr(models_int8, "PackedInt8Linear", none)
    with pytest.raises(BackendError, match=r"int8 cannot run here, .* \(no kernel\); try float32"):
        rg.models.quantize(models.build(models.language_tiny(vocab=9)))


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="instructions of x86")
@pytest.mark.parametrize(
    "isa", ["AVX2", "SSE41", pytest.param("AVX512_CORE", marks=pytest.mark.slow)]
)
def test_products_are_exact_without_vnni(isa):
    script = Path(__file__).with_name("int8_products.py")
    done = subprocess.run(
        [sys.executable, script],
        env=os.environ | {"ONEDNN_MAX_CPU_ISA": isa},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    steps, wrong, error = map(float, done.stdout.split())
    assert (steps, wrong) == (63, 0)
    assert 0 < error < 0.02


@torch.no_grad()
def test_products_are_exact_here():
    assert wrong_products() == 0
    steps = PackedInt8Linear(torch.eye(2), None).steps
    assert 0 < relative_error() < {63: 0.02, 127: 0.01}[steps]
