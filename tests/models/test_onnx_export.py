"""Exported ONNX graphs match the model in onnxruntime."""

import sys

import numpy as np
import pytest
import torch

import regard as rg
from regard import models
from regard.errors import ConfigError
from regard.models.onnx import export

KINDS = {
    "post-LN, sinusoidal": models.translator_tiny(
        vocab=11, norm_first=False, final_norm=False, activation="relu", output_scale=0.5
    ),
    "rotary, halves, grouped, RMS, gated": models.translator_tiny(
        vocab=11, rope_theta=100.0, rotate_half=True, positions="none", kv_heads=2, norm="rms",
        activation="silu", gated=True, bias=False, tied=False,
    ),
    "learned positions, softcap, sinks, bias of the output": models.translator_tiny(
        vocab=11, positions="learned", softcap=2.0, sinks=True, output_bias=True, scale=0.5,
        activation="gelu_tanh", rope_theta=50.0,
    ),
    "no residuals": models.translator_tiny(vocab=11, skip=False),
    "a language model in a window": models.language_tiny(vocab=11, window=2, kv_heads=1),
    "GRU, Luong": models.recurrent_tiny(vocab=11, layers=2),
    "LSTM, Bahdanau": models.recurrent_tiny(vocab=11, cell="lstm", attention="bahdanau"),
    "LSTM, two layers, no attention": models.recurrent_tiny(
        vocab=11, cell="lstm", attention="none", layers=2
    ),
    "RNN": models.recurrent_tiny(vocab=11, cell="rnn", shared_embedding=False, tied=False),
    "BERT": models.classifier_base(9, 3, layers=1, dim=16, heads=2),
    "the mean of a text": models.classifier_tiny(vocab=9, classes=2),
    "a ViT with a hidden head": models.vision_tiny(classes=5, head="mlp"),
    "strictly causal sound": models.recogniser_tiny(vocab=7, left_chunks=3),
    "sound against its level": models.recogniser_tiny(vocab=7, left_chunks=3, cmvn_depth=3.0),
    "sound over its bands": models.recogniser_tiny(vocab=7, left_chunks=3, filters=4),
    "sound in chunks": models.recogniser_tiny(vocab=7, chunk=4, left_chunks=2, sample_rate=16000),
    "sound that hears its chunk alone": models.recogniser_tiny(vocab=7, chunk=4, left_chunks=0),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_model_answers_as_torch_does(name, tmp_path):
    model = models.build(KINDS[name]).eval()
    for parameter in model.parameters():  # gains of one and biases of zero would hide a slip
        torch.nn.init.normal_(parameter, std=0.2)
    found = models.export_onnx(model, tmp_path)
    assert [file.name for file, _ in found] == [f"{file.stem}.onnx" for file, _ in found]
    assert all(0 <= difference < 1e-4 for _, difference in found)


@pytest.mark.parametrize("name", rg.runs.pretrained_names())
def test_every_pretrained_model_matches_torch(name, tmp_path):
    run = rg.load(name, device="cpu")
    # logits of trained models reach tens: 3.5e-5 was seen without AVX-512
    assert all(difference < 1e-4 for _, difference in rg.runs.export_run(run, tmp_path))
    assert (tmp_path / "tokenizer.json").exists() == (run.tokenizer is not None)


@pytest.mark.parametrize("name", ["phrases", "phrases-gru"])
def test_greedy_by_onnxruntime_matches_regard(name, tmp_path):
    run, to = rg.load(name, device="cpu"), ["de", "ja"]
    rg.runs.export_run(run, tmp_path)
    texts = ["3 days", "March 5, 2024", "$12.50", "apples, pears and plums"]
    want = run.translate(texts, to=to)
    encoder, step = (export.OnnxSession(tmp_path / f"{name}.onnx") for name in ("encoder", "step"))
    ids = [[*run.tokenizer.encode_input(text), run.tokenizer.eos_id] for text in texts]
    lengths = torch.tensor([len(row) for row in ids])
    source = torch.zeros(len(ids), int(lengths.max()), dtype=torch.long)
    for n, row in enumerate(ids):
        source[n, : len(row)] = torch.tensor(row)
    read = encoder(tokens=source, lengths=lengths)
    for language in to:
        rows = greedily(step, {**read, "lengths": lengths}, run.tokenizer.language_id(language))
        assert [run.tokenizer.decode(row) for row in rows] == want[language]


def greedily(step, state, first, end=2, limit=60):
    rows = [[] for _ in state["lengths"]]
    token = torch.full_like(state["lengths"], first)
    if "memory" in state:
        state["past"] = state["memory"][:, :, :, :, :0]
    for _ in range(limit):
        found = step(state, tokens=token[:, None] if "memory" in state else token)
        state |= {n.removesuffix(".next"): x for n, x in found.items() if n.endswith(".next")}
        token = found["logits"].reshape(len(rows), -1).argmax(-1)
        for row, one in zip(rows, token.tolist(), strict=True):
            row.append(one)
    return [row[: row.index(end)] for row in rows]


def test_a_stream_of_any_pieces_is_the_recording_and_its_state_stops_growing(tmp_path):
    model = models.build(KINDS["strictly causal sound"]).eval()
    models.export_onnx(model, tmp_path)
    step, frames = export.OnnxSession(tmp_path / "step.onnx"), torch.randn(2, 61, 40)
    state, found = export._initial_state(model), []
    for part in frames.split([4, 8, 4, 20, 24, 1], 1):
        outputs = step(state, frames=part)
        state = {name.removesuffix(".next"): x for name, x in outputs.items()}
        found.append(outputs["log_probs"])
        assert state["past"].shape[4] <= 3
    with torch.no_grad():
        want = model(frames)[0]
    torch.testing.assert_close(torch.cat(found, 1), want, rtol=0, atol=1e-4)


def test_far_into_a_stream_positions_are_still_exact(tmp_path):
    model = models.build(KINDS["strictly causal sound"]).eval()
    models.export_onnx(model, tmp_path)
    step, state = export.OnnxSession(tmp_path / "step.onnx"), export._initial_state(model)
    frames = torch.randn(2, 16, 40)
    late = {**state, "offset": torch.tensor([3_000_000])}  # 33 hours
    a, b = (step(start, frames=frames)["log_probs"] for start in (state, late))
    torch.testing.assert_close(a, b, rtol=0, atol=1e-4)


def test_a_beam_takes_rows_of_the_past_by_one_index(tmp_path):
    model = models.build(KINDS["a language model in a window"]).eval()
    models.export_onnx(model, tmp_path)
    step, tokens = export.OnnxSession(tmp_path / "step.onnx"), torch.tensor([[1, 2], [3, 4]])
    past = step(tokens=tokens, past=torch.zeros(2, 2, 2, 1, 0, 16))["past.next"]
    rows, more = torch.tensor([1, 1, 0]), torch.tensor([[5], [6], [7]])
    logits = step(tokens=more, past=past[:, :, rows])["logits"]
    with torch.no_grad():
        want = model(torch.cat([tokens[rows], more], 1))[:, -1:]
    torch.testing.assert_close(logits, want, rtol=0, atol=1e-4)


def test_the_exported_model_is_unchanged(tmp_path):
    model = models.LanguageModel(models.language_tiny(vocab=9)).bfloat16().train()
    models.export_onnx(model, tmp_path)
    assert model.training
    assert model.embedding.token_embeddings.dtype == torch.bfloat16


@pytest.mark.usefixtures("users_view")
def test_unsupported_exports_raise(tmp_path, monkeypatch):
    def refused(config, message):
        with pytest.raises(ConfigError, match=message):
            models.export_onnx(models.build(config), tmp_path / "none")

    refused(
        models.translator_tiny(vocab=9, relative_bias="alibi"),
        "relative_bias: needs 'none' to export, got 'alibi'",
    )
    refused(models.recurrent_tiny(vocab=9, attention="hybrid"), "got 'hybrid'")
    refused(
        models.recogniser_tiny(vocab=9, left_chunks=None),
        "left_chunks=None; try training with left_chunks=64",
    )
    refused(models.MLPConfig(inputs=3, classes=2), "needs one of Translator, .* got MLP")
    with pytest.raises(ConfigError, match=r"run: needs a run, got Translator; try"):
        rg.runs.export_run(models.build(models.translator_tiny(vocab=9)), tmp_path)
    assert not (tmp_path / "none").exists()
    monkeypatch.setitem(sys.modules, "onnx", None)
    refused(models.translator_tiny(vocab=9), r"try pip install 'regard\[export\]'")


def test_an_answer_that_is_off_is_an_error_with_its_number(tmp_path, monkeypatch):
    model = models.build(models.language_tiny(vocab=9))
    right = export.OnnxSession.__call__

    def wrong(self, given=None, **more):
        found = right(self, given, **more)
        return {**found, "logits": found["logits"] + 0.5}

    monkeypatch.setattr(export.OnnxSession, "__call__", wrong)
    with pytest.raises(ConfigError, match=r"within 0.0001 of torch, got 0.5 for step.onnx"):
        models.export_onnx(model, tmp_path)


def test_a_not_a_number_is_no_agreement(tmp_path):
    model = models.build(models.language_tiny(vocab=9))
    with torch.no_grad():
        model.embedding.token_embeddings[:] = np.nan
    with pytest.raises(ConfigError, match="got nan"):
        models.export_onnx(model, tmp_path)
