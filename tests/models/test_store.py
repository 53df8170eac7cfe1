"""Saved models load bit for bit; corrupt files raise one-line errors."""

import json
import os
import stat
from dataclasses import replace

import pytest
import torch
from model_cases import CASES
from safetensors.torch import load_file, safe_open, save_file
from torch.testing import assert_close

from regard import models
from regard.errors import ConfigError, FileError
from regard.models import (
    Classifier,
    LanguageModel,
    Translator,
    classifier_tiny,
    language_tiny,
    load,
    save,
    translator_tiny,
)
from regard.ops import RopeScaling
from regard.runs import config_from_json, config_to_json, override_settings

SIZES = {"dim": 8, "heads": 2, "layers": 1}


def language(**changes):
    return LanguageModel(language_tiny(5, **SIZES, **changes))


@pytest.fixture
def saved(tmp_path):
    return save(language(), tmp_path)


def rewrite(file, change_header=lambda header: None, change_tensors=lambda tensors: None):
    """The same file with something else in it, and a checksum that fits."""
    tensors = load_file(file)
    with safe_open(file, "pt") as opened:
        header = json.loads(opened.metadata()["regard"])
    change_tensors(tensors)
    header["checksum"] = models.serialization.checksum(tensors)
    change_header(header)
    save_file(tensors, file, {"regard": json.dumps(header)})


def test_a_loaded_model_equals_the_saved_one(tmp_path):
    model = language()
    back = load(save(model, tmp_path))
    assert type(back) is LanguageModel
    assert back.config == model.config
    assert not back.training
    for (name, x), (other, y) in zip(
        model.state_dict().items(), back.state_dict().items(), strict=True
    ):
        assert name == other
        assert torch.equal(x, y)


@pytest.mark.parametrize(
    "model",
    [
        Translator(translator_tiny(5, decoder_layers=1, **SIZES)),
        Translator(
            translator_tiny(5, decoder_layers=1, shared_embedding=False, tied=False, **SIZES)
        ),
        Classifier(classifier_tiny(5, 3, relative_bias="alibi", **SIZES)),
        LanguageModel(language_tiny(5, relative_bias="keys", sinks=True, **SIZES)),
    ],
    ids=["translator", "untied", "classifier", "language"],
)
def test_answers_are_the_same_to_the_last_bit(model, tmp_path):
    tokens = torch.tensor([[1, 2, 3]])
    asked = (tokens, tokens) if isinstance(model, Translator) else (tokens,)
    assert torch.equal(load(save(model, tmp_path))(*asked), model.eval()(*asked))


@pytest.mark.parametrize("name", CASES)
def test_every_model_is_loaded_as_saved(name, tmp_path):
    model, inputs = CASES[name]()
    back = load(save(model, tmp_path))
    assert type(back) is type(model)
    assert back.config == model.config
    assert_close(back.state_dict(), model.state_dict(), atol=0, rtol=0)
    assert_close(back(*inputs), model.eval()(*inputs))


def test_a_shared_embedding_is_written_once_and_stays_shared(tmp_path):
    file = save(Translator(translator_tiny(5, decoder_layers=1, **SIZES)), tmp_path)
    names = [name for name in load_file(file) if "embedding" in name]
    assert names == ["source_embedding.token_embeddings"]
    model = load(file)
    assert model.target_embedding is model.source_embedding


def test_half_precision_stays_half(tmp_path):
    assert (
        load(save(language().bfloat16(), tmp_path)).embedding.token_embeddings.dtype
        == torch.bfloat16
    )


def test_a_file_or_a_folder_can_be_named(tmp_path):
    assert save(language(), tmp_path / "a") == tmp_path / "a" / "model.safetensors"
    assert save(language(), tmp_path / "b.safetensors") == tmp_path / "b.safetensors"
    assert load(tmp_path / "a").config == load(str(tmp_path / "b.safetensors")).config


def test_loading_leaves_the_rng_state(saved):
    before = torch.get_rng_state()
    load(saved)
    assert torch.equal(torch.get_rng_state(), before)


def test_others_may_read_it_as_any_new_file(saved, tmp_path):
    (tmp_path / "plain").touch()
    mode = [stat.S_IMODE(os.stat(f).st_mode) for f in (saved, tmp_path / "plain")]
    assert mode[0] == mode[1]


def test_a_failed_write_keeps_the_old_file_and_leaves_no_other(saved, monkeypatch):
    old = saved.read_bytes()
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "disk full")))
    with pytest.raises(FileError, match="model.safetensors: cannot be written, disk full"):
        save(language(), saved)
    assert saved.read_bytes() == old
    assert os.listdir(saved.parent) == [saved.name]


@pytest.mark.parametrize("share", [0.0, 0.0005, 0.5, 0.999])
def test_a_truncated_file(saved, share):
    whole = saved.read_bytes()
    saved.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(FileError, match=r"model.safetensors: needs a whole safetensors file, got"):
        load(saved)


def test_one_flipped_bit_in_the_numbers(saved):
    damaged = bytearray(saved.read_bytes())
    damaged[-3] ^= 4
    saved.write_bytes(damaged)
    with pytest.raises(FileError, match="its numbers were damaged"):
        load(saved)


def test_a_missing_file_a_foreign_file_and_no_safetensors_at_all(tmp_path):
    with pytest.raises(FileError, match="nowhere/model.safetensors: .* got no such file"):
        load(tmp_path / "nowhere")
    save_file({"x": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(FileError, match="other.safetensors: needs our header, got other weights"):
        load(tmp_path / "other.safetensors")
    torch.save({"x": torch.zeros(2)}, tmp_path / "pickle.pt")
    with pytest.raises(FileError, match="pickle.pt: needs a whole safetensors file"):
        load(tmp_path / "pickle.pt")


HEADERS = {
    r"needs a known model, got 'LanguageModle'; try LanguageModel": lambda h: h.update(
        model="LanguageModle"
    ),
    r"got unknown 'layer'; try layers": lambda h: h["config"].update(layer=1),
    "needs 'vocab' in its config, got none": lambda h: h["config"].pop("vocab"),
    "valid config, got dim: needs a multiple of heads=2, got 9": lambda h: h["config"].update(
        dim=9
    ),
    "valid config, got layers: needs a whole number of 1 or more, got 'two'": (
        lambda h: h["config"].update(layers="two")
    ),
    "valid config, got .*NoneType": lambda h: h["config"].update(layers=None),
    "needs 'embedding.token_embeddings' as .*4000000, 8.*, got float32": lambda h: h[
        "config"
    ].update(vocab=4_000_000),
    "at most one of its layers per tensor, [0-9]+, got 2000": lambda h: h["config"].update(
        layers=2000
    ),
    "max_positions of at most 2147483648, got 4611686018427387904": lambda h: h["config"].update(
        max_positions=1 << 62
    ),
    "a config of names and values, got 3": lambda h: h.update(config=3),
    "needs version 1, got 2; try a newer regard": lambda h: h.update(version=2),
    "needs model, version, config, checksum in its header": lambda h: h.pop("model"),
}


@pytest.mark.parametrize("message", HEADERS)
def test_a_header_that_cannot_be(saved, message, users_view):
    rewrite(saved, HEADERS[message])
    with pytest.raises(FileError, match=f"model.safetensors: .*{message}"):
        load(saved)


TENSORS = {
    r"got unknown 'embedding.tabel'; try embedding.token_embeddings": lambda t: t.update(
        {"embedding.tabel": t.pop("embedding.token_embeddings")}
    ),
    "needs 'embedding.token_embeddings' as .*, got none": lambda t: t.pop(
        "embedding.token_embeddings"
    ),
    r"'embedding.token_embeddings' as float32 \(5, 8\), got float32 \(8, 5\)": lambda t: t.update(
        {"embedding.token_embeddings": torch.zeros(8, 5)}
    ),
    r"'embedding.token_embeddings' as float32 \(5, 8\), got int64 \(5, 8\)": lambda t: t.update(
        {"embedding.token_embeddings": torch.zeros(5, 8).long()}
    ),
}


@pytest.mark.parametrize("message", TENSORS)
def test_tensors_that_do_not_fit(saved, message):
    rewrite(saved, change_tensors=TENSORS[message])
    with pytest.raises(FileError, match=f"model.safetensors: .*{message}"):
        load(saved)


def test_a_header_that_is_not_json(saved):
    for text in ("{", "[" * 100_000):
        save_file(load_file(saved), saved, {"regard": text})
        with pytest.raises(FileError, match="needs JSON in its header"):
            load(saved)


def test_only_our_models_are_saved(tmp_path):
    with pytest.raises(ConfigError, match="model: needs one of .*LanguageModel.* got Linear"):
        save(torch.nn.Linear(1, 1), tmp_path)


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "taken").touch()
    with pytest.raises(FileError, match="taken/model.safetensors: cannot be written"):
        save(language(), tmp_path / "taken")


def test_scaled_rotary_positions_are_saved_and_overridden(tmp_path):
    scaling = RopeScaling("yarn", 4.0, 16, high=2.0, amplitude=1.2)
    config = models.language_small(9, layers=1, rope_scaling=scaling, rope_dim=4)
    model = models.LanguageModel(config).eval()
    again = models.load(models.save(model, tmp_path))
    assert again.config == config
    changed = override_settings(config, ["rope_scaling.factor=8"])
    assert changed.rope_scaling == replace(scaling, factor=8.0)
    read = config_from_json(type(config), json.loads(json.dumps(config_to_json(config))), "config")
    assert read == config
    tokens = torch.randint(9, (1, 6))
    assert torch.equal(again(tokens), model(tokens))
