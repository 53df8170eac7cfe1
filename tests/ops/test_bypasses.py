"""Every path around the interception point steps aside while something is registered."""

import ast
from pathlib import Path

import pytest
import torch

import regard
from regard import models, nn
from regard.decode import cpu as cpu_decoder
from regard.decode import language_stepper as language
from regard.decode import stepper
from regard.decode.gpu import engine
from regard.inspection.record.look import patched
from regard.ops import Causal, attend
from regard.ops.attend import fused
from regard.ops.intercept import BYPASSES, intercepting

SOURCE = Path(regard.__file__).parent


class Counter:
    """An interceptor that counts calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, call, proceed):
        self.calls += 1
        return proceed(call)


def check_sdpa(monkeypatch):
    taken = []
    monkeypatch.setattr(fused, "can_use_sdpa", lambda *given: True)
    monkeypatch.setattr(fused, "attend_by_sdpa", lambda q, *rest: taken.append(q) or q)
    q = torch.randn(1, 2, 3, 4)
    with intercepting(counter := Counter()):
        attend(q, q, q, mask=Causal(), need_lse=False)
        assert (counter.calls, len(taken)) == (1, 0)
    attend(q, q, q, mask=Causal(), need_lse=False)
    attend(q, q, q, mask=Causal())  # needs its log-sum-exp
    assert (counter.calls, len(taken)) == (1, 1)


def check_fused_qkv(monkeypatch):
    layer = nn.MultiHeadAttention(8, 2)
    layers = (layer.to_q, layer.to_k, layer.to_v)
    assert nn.attention._are_plain(*layers)
    handle = layer.to_k.register_forward_hook(lambda *given: None)
    assert not nn.attention._are_plain(*layers)
    handle.remove()
    assert nn.attention._are_plain(*layers)


@torch.no_grad()
def check_transformers_sdpa(monkeypatch):
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 24}
    layers = {"num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.LlamaConfig(**sizes, **layers, attn_implementation="sdpa")
    model, ids = transformers.LlamaModel(config).eval(), torch.tensor([[3, 4, 5]])
    want, taken = model(ids)[0], []
    own = transformers.AttentionInterface()["sdpa"]
    monkeypatch.setitem(
        transformers.AttentionInterface._global_mapping,
        "sdpa",
        lambda *given, **others: taken.append(1) or own(*given, **others),
    )
    with patched(model):
        with intercepting(counter := Counter()):
            model(ids)
        assert (counter.calls, len(taken)) == (2, 0)
        assert torch.equal(model(ids)[0], want)  # nobody looks: the bits of the model
        assert (counter.calls, len(taken)) == (2, 2)


def check_cpu_decoder(monkeypatch):
    model = models.Translator(models.translator_tiny(vocab=9)).eval()
    assert cpu_decoder.supports_cpu_decoder(model)
    with intercepting(Counter()):
        assert not cpu_decoder.supports_cpu_decoder(model)
    assert cpu_decoder.supports_cpu_decoder(model)


@torch.no_grad()
def check_cpu_decoder_step(monkeypatch):
    model = models.Translator(models.translator_tiny(vocab=9)).eval()
    steps = stepper.TranslatorStepper(model)
    state, tokens = steps.start(torch.tensor([[3, 4, 5]])), torch.tensor([2])
    assert isinstance(state, cpu_decoder.CpuState)
    want, _ = steps.step(tokens, state)
    with intercepting(counter := Counter()):
        logits, _ = steps.step(tokens, state)
    assert counter.calls == 2 * len(model.decoder.blocks)  # self and cross
    torch.testing.assert_close(logits, want, rtol=1e-4, atol=1e-4)


def check_gpu_engine(monkeypatch):
    monkeypatch.setattr(engine, "can_capture", lambda model: True)
    model = models.LanguageModel(models.language_tiny(vocab=9))
    graphs = engine.CudaGraphEngine(model)
    assert graphs.ready()
    with intercepting(Counter()):
        assert not graphs.ready()
    assert graphs.ready()


def check_gpu_weights(monkeypatch):
    monkeypatch.setattr(engine, "can_capture", lambda model: True)
    model = models.LanguageModel(models.language_tiny(vocab=9))
    handle = next(model.children()).register_forward_hook(lambda *given: None)
    assert not engine.CudaGraphEngine(model).ready()
    handle.remove()
    assert engine.CudaGraphEngine(model).ready()


@torch.no_grad()
def check_gpu_engine_start(monkeypatch):
    model = models.LanguageModel(models.language_tiny(vocab=9)).eval()
    captured = object.__new__(language.GpuState)
    monkeypatch.setattr(engine, "can_capture", lambda model: True)
    monkeypatch.setattr(language.LanguageStepper, "_start_gpu", lambda self, *given: captured)
    steps = language.LanguageStepper(model)
    assert steps.start(torch.tensor([[3, 4, 5]])) is captured
    with intercepting(counter := Counter()):
        assert isinstance(steps.start(torch.tensor([[3, 4, 5]])), language.LanguageState)
    assert counter.calls


@torch.no_grad()
def check_gpu_engine_step(monkeypatch):
    model = models.LanguageModel(models.language_tiny(vocab=9)).eval()
    steps = language.LanguageStepper(model)
    slow, fast = steps.start(torch.tensor([[3, 4, 5]])), object.__new__(language.GpuState)
    by_graph = (torch.zeros(1, 9), fast)
    monkeypatch.setattr(language.LanguageStepper, "_fits", lambda self, *given: True)
    monkeypatch.setattr(language.LanguageStepper, "_gpu_step", lambda self, *given: by_graph)
    monkeypatch.setattr(language.LanguageStepper, "_to_model_state", lambda self, state: slow)
    assert steps.step(torch.tensor([2]), fast)[1] is fast
    with intercepting(counter := Counter()):
        assert isinstance(steps.step(torch.tensor([2]), fast)[1], language.LanguageState)
    assert counter.calls


@pytest.mark.parametrize("bypass", BYPASSES, ids=lambda bypass: bypass.name)
def test_it_steps_aside(bypass, monkeypatch):
    check = globals().get(f"check_{bypass.name.replace(' ', '_')}")
    assert check is not None, f"{bypass.name}: needs a check in this file"
    check(monkeypatch)


def asks_for_interceptors(node):
    name = getattr(node, "attr", getattr(node, "id", None))
    is_call = isinstance(node, ast.Attribute | ast.Name)
    return is_call and name in ("is_intercepted", "_forward_hooks")


def test_every_function_that_checks_for_interceptors_is_registered():
    asking = set()
    for folder in ("ops", "nn", "models", "decode", "inspection/adapters"):
        for file in (SOURCE / folder).rglob("*.py"):
            module = ".".join(("regard", *file.relative_to(SOURCE).with_suffix("").parts))
            tree = ast.parse(file.read_text())
            scopes = [(f.name, f) for f in tree.body if isinstance(f, ast.FunctionDef)]
            scopes += [
                (f"{c.name}.{f.name}", f)
                for c in tree.body
                if isinstance(c, ast.ClassDef)
                for f in c.body
                if isinstance(f, ast.FunctionDef)
            ]
            for name, function in scopes:
                if any(asks_for_interceptors(node) for node in ast.walk(function)):
                    asking.add((module, name))
    # deletes hooks of a copied model, and takes no other path
    asking.remove(("regard.inspection.adapters.module_tracker", "_CopiedHook.__call__"))
    assert asking == {(bypass.module, bypass.function) for bypass in BYPASSES}
