"""GGUF files, written by the package `gguf` from a tiny random Llama."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from einops import rearrange
from tokenizers import Tokenizer as Engine
from torch.testing import assert_close

import regard as rg
from regard.data import BPETokenizer, Tokenizer
from regard.errors import RegardError
from regard.models.hub.gguf_file import NAMES, read_gguf
from regard.runs.downloads import DOWNLOADS, get

gguf = pytest.importorskip("gguf")
TEXT = "In 2024, 12 cats sat  on\n\n   9 mats; she's café-bound."
SPECIAL = ["<|end|>", "<|user|>", "<|stop|>", "<|none|>"]


def make_llama(vocab):
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "rope_theta": 5000.0}
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=vocab, tie_word_embeddings=True, **sizes)
    return transformers.LlamaForCausalLM(config).eval()


def write_gguf(file, llama, *, architecture="llama", quantization=None, split="smollm", extra=()):
    config, writer = llama.config, gguf.GGUFWriter(file, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(5000.0)
    content = json.loads(WORDS._engine.to_str())
    tokens = [*SPECIAL, *sorted(content["model"]["vocab"], key=content["model"]["vocab"].get)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)))
    writer.add_token_merges([" ".join(pair) for pair in content["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    theirs = {hub: ours for ours, hub in NAMES.items()}
    for name, x in [*llama.state_dict().items(), *extra]:
        if name == "lm_head.weight":
            continue
        module, number = name.removesuffix(".weight"), None
        if ".layers." in module:
            number = module.split(".")[2]
            module = module.replace(f".{number}.", ".{i}.")
        ours = theirs.get(module, module).replace("{i}", str(number))
        if module.endswith(("q_proj", "k_proj")):
            heads = 4 if module.endswith("q_proj") else 2
            x = rearrange(x, "(h half pair) d -> (h pair half) d", h=heads, half=2)
        kind = quantization if x.ndim == 2 else None
        data = x.float().numpy()
        if kind is not None:
            data = gguf.quants.quantize(data, kind)
        writer.add_tensor(f"{ours}.weight", np.ascontiguousarray(data), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


WORDS = BPETokenizer.train([TEXT, "the cats sat on the mats"] * 9, vocab_size=290)
VOCAB = WORDS.vocab


def test_the_logits_are_those_of_transformers(tmp_path):
    llama = make_llama(VOCAB)
    model = read_gguf(write_gguf(tmp_path / "a.gguf", llama)).model
    tokens = torch.randint(0, VOCAB, (2, 17), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert_close(model(tokens), llama(tokens).logits, atol=1e-5, rtol=1e-4)
    assert model.config.rope_theta == 5000.0
    assert model.config.eps == llama.config.rms_norm_eps
    assert model.config.tied


def test_quantised_weights_are_dequantised(tmp_path):
    llama = make_llama(VOCAB)
    q8 = gguf.GGMLQuantizationType.Q8_0
    model = read_gguf(write_gguf(tmp_path / "a.gguf", llama, quantization=q8)).model
    want = llama.model.layers[1].mlp.up_proj.weight
    got = model.decoder.blocks[1].feed_forward.to_hidden.weight
    assert got.dtype == torch.float32
    assert 0 < (got - want).abs().max() < want.abs().max() / 127
    assert_close(model.decoder.norm.gain, llama.model.norm.weight)


def test_the_tokenizer_splits_digits_before_words(tmp_path):
    contents = read_gguf(write_gguf(tmp_path / "a.gguf", make_llama(VOCAB)))
    engine = Engine.from_str(contents.tokenizer)
    assert engine.decode(engine.encode(TEXT).ids) == TEXT
    tokens = engine.encode("   9 mats 2024").tokens
    # all white space before a digit is one piece, as the digit was split off first
    assert tokens[-4:] == ["2", "0", "2", "4"]
    spaces = engine.encode("   ").tokens
    assert tokens[: len(spaces)] == spaces
    plain = read_gguf(write_gguf(tmp_path / "b.gguf", make_llama(VOCAB), split="gpt-2"))
    assert "Digits" not in plain.tokenizer


def test_special_tokens_have_roles_and_no_new_row_is_needed(tmp_path):
    contents = read_gguf(write_gguf(tmp_path / "a.gguf", make_llama(VOCAB)))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "tokenizer.json").write_text(contents.tokenizer)
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps(contents.special_names))
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.vocab == VOCAB == contents.model.config.vocab
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id) == (1, 2, 0)
    assert tokenizer.pad_id == 3  # that of the file is also the end token


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "gpt2"}, "needs a model of the architecture llama, got gpt2"),
        ({"split": "llama-bpe"}, "tokenizer: needs gpt2 with gpt-2 or smollm words"),
        (
            {"extra": [("rope_freqs.weight", torch.ones(8))]},
            "only those of a Llama model, got rope",
        ),
    ],
)
def test_what_is_not_known_is_refused(changes, message, tmp_path):
    with pytest.raises(RegardError, match=message):
        read_gguf(write_gguf(tmp_path / "a.gguf", make_llama(VOCAB), **changes))


def test_a_damaged_file_is_one_line(tmp_path):
    file = tmp_path / "a.gguf"
    file.write_bytes(b"GGUF" + b"\xff" * 40)
    with pytest.raises(RegardError, match=r"a.gguf: needs a GGUF file of a Llama model, got"):
        read_gguf(file)


def test_a_downloaded_language_model_generates(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_HOME", str(tmp_path / "cache"))
    source = DOWNLOADS["smollm2"]
    (name,) = source.files
    file = write_gguf(tmp_path / name, make_llama(VOCAB))
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    monkeypatch.setitem(DOWNLOADS, "smollm2", replace(source, files={name: sha256}))
    get("smollm2", tmp_path)
    run = rg.load("smollm2", device="cpu")
    assert run.verbs[:2] == ["generate", "look"]
    assert isinstance(run.generate("the cats", max_new_tokens=4), str)
    assert len(run.look("the cats").sites) == 2
