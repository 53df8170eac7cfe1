"""Hugging Face folders: both directions give equal outputs, without downloads."""

import dataclasses
import json

import pytest
import torch
import transformers
from option_cases import values
from test_convert import (
    ENDS,
    SIZES,
    VOCAB,
    batch,
    bert,
    decoder,
    gpt2,
    llama,
    marian,
    mistral,
    same,
    shaken,
    t5,
    untied,
)

from regard import models
from regard.decode import make_stepper
from regard.errors import ConfigError, FileError
from regard.models.hub.folder import FAMILIES as CONVERTERS

RELEASE = int(transformers.__version__.split(".")[0])


def rope(parameters):
    """Rotary positions as a config of this release takes them."""
    if RELEASE >= 5:
        return {"rope_parameters": parameters}
    scaling = dict(parameters)
    given = {n: scaling.pop(n) for n in ("rope_theta", "partial_rotary_factor") if n in scaling}
    return given | ({} if scaling["rope_type"] == "default" else {"rope_scaling": scaling})


def qwen2(**more):
    return decoder("Qwen2", num_hidden_layers=3, **more)


def arcee(**more):
    return decoder("Arcee", hidden_act="gelu", **more)


def gemma(**more):
    return decoder("Gemma", num_key_value_heads=1, head_dim=6, **more)


LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"rope_theta": 500.0, "original_max_position_embeddings": 16}
PARTIAL = {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.75}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 4}
LINEAR = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}


GEMMA = {"num_hidden_layers": 3, "head_dim": 6, "query_pre_attn_scalar": 7, "sliding_window": 3}


def gemma2(**more):
    model = decoder("Gemma2", **GEMMA | more)
    if RELEASE < 5:
        model.set_attn_implementation("eager")  # SDPA leaves the softcap out there
    return model


def gemma3(**more):
    full = LINEAR | more.pop("full", {})
    if RELEASE >= 5:
        local = {"rope_type": "default", "rope_theta": 100.0}
        positions = rope({"sliding_attention": local, "full_attention": full})
    else:
        positions = rope(full) | {"rope_local_base_freq": 100.0}
    types = ["sliding_attention", "full_attention", "sliding_attention"]
    options = SIZES | ENDS | GEMMA | {"num_key_value_heads": 2} | more
    config = transformers.Gemma3TextConfig(**positions, layer_types=types, **options)
    return shaken(transformers.Gemma3ForCausalLM(config))


def neox(**more):
    config = transformers.GPTNeoXConfig(**SIZES | {"hidden_size": 32} | ENDS | more)
    return shaken(transformers.GPTNeoXForCausalLM(config))


def vit(**more):
    config = transformers.ViTConfig(
        image_size=8, patch_size=4, num_channels=1, hidden_size=16, num_hidden_layers=2,
        num_attention_heads=4, intermediate_size=24, num_labels=3, **more,
    )  # fmt: skip
    return shaken(transformers.ViTForImageClassification(config))


def whisper():
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = transformers.WhisperConfig(
        vocab_size=VOCAB, num_mel_bins=5, d_model=16, encoder_layers=2, encoder_attention_heads=4,
        encoder_ffn_dim=24, max_source_positions=10, decoder_start_token_id=0, **ENDS,
    )  # fmt: skip
    return shaken(WhisperEncoder(config))


FAMILIES = {
    "arcee": arcee,
    "bert": bert,
    "bert without a head": lambda: bert("BertModel"),
    "gemma": gemma,
    "gemma, untied, with biases": lambda: untied(
        gemma(tie_word_embeddings=False, attention_bias=True, rope_theta=500.0)
    ),
    "gemma2": gemma2,
    "gemma2 without softcaps": lambda: gemma2(
        attn_logit_softcapping=None, final_logit_softcapping=None, num_key_value_heads=4
    ),
    "gemma3_text": gemma3,
    "gpt_neox": neox,
    "gpt_neox, sequential and tied": lambda: neox(
        use_parallel_residual=False, attention_bias=False, tie_word_embeddings=True
    ),
    "gpt2": gpt2,
    "gpt2 untied": lambda: untied(gpt2(tie_word_embeddings=False)),
    "llama": lambda: llama(tie_word_embeddings=False, rope_theta=500.0),
    "llama with biases": lambda: llama(attention_bias=True, mlp_bias=True, head_dim=6),
    "llama 3.1": lambda: llama(**rope(LLAMA3)),
    "llama with linear positions": lambda: llama(**rope(LINEAR)),
    "llama with yarn": lambda: llama(**rope(YARN | {"rope_theta": 100.0})),
    "marian": marian,
    "mistral": mistral,
    "qwen2": qwen2,
    "qwen2 with windows": lambda: qwen2(
        use_sliding_window=True, sliding_window=3, max_window_layers=1, tie_word_embeddings=True
    ),
    "qwen3": lambda: decoder("Qwen3", head_dim=6),
    "qwen3 with windows and biases": lambda: decoder(
        "Qwen3", attention_bias=True, use_sliding_window=True, sliding_window=3, max_window_layers=1
    ),
    "olmo2": lambda: decoder("Olmo2"),
    "phi3": lambda: decoder("Phi3", hidden_size=32, sliding_window=3, **rope(PARTIAL)),
    "t5": t5,
    "t5 1.1": lambda: untied(t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False)),
    "vit": vit,
    "vit without biases of q, k and v": lambda: vit(qkv_bias=False),
    "whisper": whisper,
}
each_family = pytest.mark.parametrize("make", FAMILIES.values(), ids=FAMILIES)


def outputs(ours, theirs):
    """What both models compute from one input."""
    torch.manual_seed(0)
    tokens = batch()[0]
    match ours:
        case models.VisionTransformer():
            images = torch.randn(2, 1, 8, 8)
            return ours(images), theirs(images).logits
        case models.SpeechEncoder():
            sound = torch.randn(2, 20, 5)
            return ours(sound), theirs(sound.mT).last_hidden_state
        case models.Translator():
            target = tokens[:, :4]
            return ours(tokens, target), theirs(tokens, decoder_input_ids=target).logits
        case models.Classifier() if ours.head is None:
            return ours(tokens), theirs(tokens).pooler_output
    return ours(tokens), theirs(tokens).logits


@each_family
@torch.no_grad()
@pytest.mark.filterwarnings("ignore:Moving the following attributes:UserWarning")  # Marian of 4
def test_a_folder_of_transformers_is_loaded_and_saved_again(make, tmp_path):
    theirs = make()
    theirs.save_pretrained(tmp_path / "theirs")
    ours = models.from_pretrained(tmp_path / "theirs")
    same(*outputs(ours, theirs))
    models.save_pretrained(ours, tmp_path / "ours", model_type=theirs.config.model_type)
    attend = theirs.config._attn_implementation
    again = type(theirs).from_pretrained(tmp_path / "ours", attn_implementation=attend).eval()
    same(*outputs(ours, again))
    same(outputs(models.from_pretrained(tmp_path / "ours"), theirs)[0], outputs(ours, theirs)[0])


@pytest.mark.parametrize("model_type", CONVERTERS)
@torch.no_grad()
def test_an_option_of_a_block_is_kept_or_refused_by_name(model_type):
    theirs, family = FAMILIES[model_type](), CONVERTERS[model_type]
    base = models.from_transformers(theirs.state_dict(), theirs.config.to_dict())
    for name, value in values(type(base.config)):
        try:
            config = dataclasses.replace(base.config, **{name: value})
        except ConfigError as error:  # it does not go with the family's other options
            assert f"with {name}={value!r}" in str(error)  # noqa: PT017
            continue
        model = models.build(config).eval()
        state = model.state_dict()  # weights of the base, position codes among them, where they fit
        fits = {
            k: x for k, x in base.state_dict().items() if k in state and x.shape == state[k].shape
        }
        model.load_state_dict(fits, strict=False)
        try:
            again = models.from_transformers(*family.write(model))
        except ConfigError as error:
            # qkv_bias may be refused as the out_bias that has to be like it
            assert f"for a {model_type} checkpoint" in str(error)  # noqa: PT017
            continue
        same(outputs(model, theirs)[0], outputs(again, theirs)[0])


def test_every_family_is_tested():
    assert {make().config.model_type for make in FAMILIES.values()} == set(CONVERTERS)


def test_the_family_is_found_by_the_options(tmp_path):
    model = models.LanguageModel(models.language_base(9, layers=1, dim=24))
    assert models.to_transformers(model)[1]["model_type"] == "gpt2"
    rotary = models.language_small(9, layers=1, rotate_half=True)
    assert models.to_transformers(models.LanguageModel(rotary))[1]["model_type"] == "llama"


def test_the_gelu_of_a_published_gemma_is_the_tanh_one():
    theirs = gemma()
    published = theirs.config.to_dict() | {"hidden_act": "gelu"}
    ours = models.from_transformers(theirs.state_dict(), published)
    assert ours.config.activation == "gelu_tanh"
    exact = models.language_small(9, layers=1, rotate_half=True, scale_embedding=True)
    with pytest.raises(ConfigError, match="activation: needs 'gelu_tanh' for a gemma"):
        models.to_transformers(
            models.LanguageModel(dataclasses.replace(exact, activation="gelu")), "gemma"
        )


def test_an_option_that_a_family_does_not_have_is_not_lost_silently():
    model = models.LanguageModel(models.language_base(9, layers=1, dim=24, softcap=5.0))
    with pytest.raises(ConfigError, match="softcap: needs None for a gpt2 checkpoint, got 5.0"):
        models.to_transformers(model, "gpt2")
    with pytest.raises(ConfigError, match=r"needs the options of one family, got .*gpt2 \(softcap"):
        models.to_transformers(model)
    with pytest.raises(ConfigError, match="model: needs Classifier for bert, got LanguageModel"):
        models.to_transformers(model, "bert")


def test_tokenizer_files_are_copied_along(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "notes.txt").write_text("")
    model = models.LanguageModel(models.language_base(9, layers=1, dim=24))
    folder = models.save_pretrained(model, tmp_path / "saved", tokenizer=tmp_path)
    assert {file.name for file in folder.iterdir()} == {
        "config.json", "model.safetensors", "tokenizer.json",
    }  # fmt: skip


def test_sharded_weights_are_read(tmp_path):
    theirs = gpt2()
    theirs.save_pretrained(tmp_path, max_shard_size="4KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    same(*outputs(models.from_pretrained(tmp_path), theirs))


def test_folders_that_cannot_be_loaded(tmp_path):
    with pytest.raises(FileError, match="config.json: needs a Hugging Face config, got no such"):
        models.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(FileError, match="model.safetensors: needs weights as safetensors, got no"):
        models.from_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"none")
    with pytest.raises(FileError, match="model.safetensors: needs a whole safetensors file"):
        models.from_pretrained(tmp_path)


CACHED = (
    "gemma2",
    "gemma3_text",
    "gpt_neox",
    "llama 3.1",
    "llama with yarn",
    "olmo2",
    "phi3",
    "qwen3",
)


@pytest.mark.parametrize("name", CACHED)
@torch.no_grad()
def test_steps_with_a_cache_give_the_logits_of_transformers(name):
    theirs = FAMILIES[name]()
    ours = models.from_transformers(theirs.state_dict(), theirs.config.to_dict())
    tokens = batch()[0]
    stepper, steps = make_stepper(ours), []
    state = stepper.start(tokens[:, :3])
    for token in tokens[:, 2:].unbind(1):
        logits, state = stepper.step(token, state)
        steps.append(logits)
    same(torch.stack(steps, 1), theirs(tokens).logits[:, 2:])


@pytest.mark.parametrize("name", ["gemma3_text", "gpt_neox", "olmo2", "phi3"])
@torch.no_grad()
def test_pairs_of_neighbours_are_written_as_halves(name):
    theirs = FAMILIES[name]()
    halves = models.from_transformers(theirs.state_dict(), theirs.config.to_dict())
    pairs = models.LanguageModel(dataclasses.replace(halves.config, rotate_half=False)).eval()
    pairs.load_state_dict(halves.state_dict())
    tokens = batch()[0]
    if name == "gpt_neox":  # a family without this step refuses them
        with pytest.raises(ConfigError, match="rotate_half: needs True for a gpt_neox checkpoint"):
            models.to_transformers(pairs, name)
        return
    same(models.from_transformers(*models.to_transformers(pairs, name))(tokens), pairs(tokens))


def test_what_rotary_positions_do_not_have_is_refused_by_name():
    theirs = gemma3()
    config, state = theirs.config.to_dict(), theirs.state_dict()
    scaled = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": LINEAR}
    with pytest.raises(ConfigError, match="rope_type: needs default in layers with a window"):
        models.from_transformers(state, config | {"rope_parameters": scaled})
    with pytest.raises(ConfigError, match="layer_types: needs 3 of full_attention and sliding_att"):
        models.from_transformers(state, config | {"layer_types": ["chunked_attention"] * 3})
    rope = YARN | {"rope_theta": 1e4, "truncate": False}
    with pytest.raises(ConfigError, match="truncate: needs True"):
        models.from_transformers(state, config | {"rope_parameters": {"full_attention": rope}})
