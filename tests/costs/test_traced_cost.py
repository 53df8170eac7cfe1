"""Costs of transformers models: torch's counter, autograd and our own models as references."""

import json

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import regard as rg
from regard.costs import Formula
from regard.errors import ConfigError

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # DeBERTa

BATCH, SOURCE, TARGET = 2, 12, 7
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
PLAIN = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
PLAIN |= {"intermediate_size": 48, "max_position_embeddings": 64, **SPECIAL}
GROUPED = PLAIN | {"num_key_value_heads": 2}
GPT = {"vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 4, **SPECIAL}
PAIR = {"vocab_size": 50, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, **SPECIAL}
PAIR |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "decoder_start_token_id": 1}
PAIR |= {"encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
IMAGE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
IMAGE |= {"intermediate_size": 48, "image_size": 16, "patch_size": 4}
MODELS = {
    "Bert": ("BertForMaskedLM", PLAIN),
    "GPT2": ("GPT2LMHeadModel", GPT),
    "Llama": ("LlamaForCausalLM", GROUPED),
    "Gemma2": ("Gemma2ForCausalLM", GROUPED | {"head_dim": 8, "sliding_window": 4}),
    "Mixtral": ("MixtralForCausalLM", GROUPED | {"num_local_experts": 4}),
    "T5": (
        "T5ForConditionalGeneration",
        {"vocab_size": 50, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
        | {"decoder_start_token_id": 0},
    ),
    "Bart": ("BartForConditionalGeneration", PAIR),
    "ViT": ("ViTForImageClassification", IMAGE),
    "Albert": ("AlbertModel", PLAIN | {"embedding_size": 16}),
    "Bloom": ("BloomForCausalLM", {"vocab_size": 50, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "GPTJ": ("GPTJForCausalLM", GPT | {"rotary_dim": 4}),
    "DebertaV2": (
        "DebertaV2Model",
        PLAIN | {"relative_attention": True, "pos_att_type": "c2p|p2c", "position_buckets": 8},
    ),
    "XLNet": ("XLNetModel", {"vocab_size": 50, "d_model": 32, "n_layer": 2, "n_head": 4}),
    "Longformer": ("LongformerModel", PLAIN | {"attention_window": [4, 4]}),
}


def make(name: str):
    kind, options = MODELS[name]
    config = getattr(transformers, f"{name}Config")(**options)
    return getattr(transformers, kind)(config).eval()


def inputs(name: str) -> dict[str, torch.Tensor]:
    if name == "ViT":
        return {"pixel_values": torch.randn(BATCH, 3, 16, 16)}
    given = {"input_ids": torch.randint(3, 50, (BATCH, SOURCE))}
    pair = {"decoder_input_ids": torch.randint(3, 50, (BATCH, TARGET))}
    return given | (pair if name in ("T5", "Bart") else {})


def cost_of(name: str, model=None):
    source = None if name == "ViT" else SOURCE
    return rg.cost(model or make(name), source=source, target=TARGET, batch=BATCH)


SLOW = ("Gemma2", "Albert", "GPTJ", "Longformer")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in MODELS]
)
def test_products_are_those_of_torchs_counter_and_parameters_are_exact(name):
    model = make(name)
    if name == "Mixtral" and not hasattr(model, "set_experts_implementation"):
        with pytest.raises(ConfigError, match="got MixtralForCausalLM: .*nonzero"):
            cost_of(name, model)  # before version 5 a loop over experts reads which are chosen
        return
    found = cost_of(name, model)
    assert found.parameters == sum(p.numel() for p in model.parameters())
    if name == "Mixtral":
        model.set_experts_implementation("eager")
    counter = FlopCounterMode(display=False)
    with counter, sdpa_kernel(SDPBackend.MATH):  # the counter does not know every fused kernel
        model.requires_grad_(False)(**inputs(name))
    assert found.flops == counter.get_total_flops() > 0
    for part in found.parts:
        value = Formula(part.formula).value(**dict(part.sizes)) if part.formula else 0
        assert value == part.multiply_adds, part


def test_formulas_are_written_as_for_our_models():
    llama, pair = cost_of("Llama"), cost_of("T5")
    assert llama["self-attention"].formula == "BL(2nd² + 2nde + 2n²d)"
    assert llama["self-attention"].sizes == (("B", 2), ("L", 2), ("n", 12), ("d", 32), ("e", 16))
    assert llama["feed-forward"].formula == "BL(3ndh)"
    assert llama["readout"].formula == "B(ndV)"
    assert pair["cross-attention"].formula == "BL(2Nd² + 2Md² + 2NMd)"
    assert pair["cross-attention"].side == "target"
    assert "LlamaForCausalLM, batch B = 2, n = 12" in str(llama)
    assert cost_of("ViT")["self-attention"].sizes[2] == ("n", 17)  # patches and [CLS]


def test_a_model_costs_the_same_as_ours_with_its_weights():
    theirs = make("Llama")
    ours = rg.models.from_transformers(theirs.state_dict(), theirs.config.to_dict())
    a, b = cost_of("Llama", theirs), rg.cost(ours, source=SOURCE, batch=BATCH)
    is_4 = transformers.__version__ < "5"  # RoPE's angles are a product, keys are repeated
    for part in ("embedding", "self-attention", "feed-forward", "norms", "readout"):
        for count in ("parameters", "multiply_adds", "cache_bytes"):
            extra = BATCH * SOURCE * 2 * (is_4 and (part, count) == ("embedding", "multiply_adds"))
            assert getattr(a[part], count) == getattr(b[part], count) + extra, (part, count)
    for part in (
        ("norms", "readout") if is_4 else ("embedding", "self-attention", "norms", "readout")
    ):
        assert a[part].bytes_moved == b[part].bytes_moved


@pytest.mark.parametrize("name", ["Bert", "Llama", "Bloom"])
def test_activations_are_what_autograd_saves(name):
    model = make(name)
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    storages = {}

    def note(x):
        storages[x.untyped_storage().data_ptr()] = x.untyped_storage()
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        model(**inputs(name), **({} if name == "Bert" else {"use_cache": False}))
    kept = sum(x.nbytes() for pointer, x in storages.items() if pointer not in own)
    found = sum(part.activation_bytes for part in cost_of(name, model).parts)
    assert found == pytest.approx(kept, rel=0.03)


def test_the_cache_is_what_the_model_returns():
    model, pair = make("Llama"), make("T5")
    out = model(**inputs("Llama")).past_key_values
    size = sum(layer.keys.nbytes + layer.values.nbytes for layer in out.layers)
    assert cost_of("Llama", model)["self-attention"].cache_bytes == size
    found = cost_of("T5", pair)
    cross = pair(**inputs("T5")).past_key_values.cross_attention_cache
    size = sum(layer.keys.nbytes + layer.values.nbytes for layer in cross.layers)
    assert found["cross-attention"].cache_bytes == size
    assert found["encoder self-attention"].cache_bytes == 0


def test_nothing_of_the_model_changes_or_is_recorded():
    model = make("Llama")
    before = {name: p.data_ptr() for name, p in model.named_parameters()}
    with torch.no_grad(), rg.look(model) as sight:
        cost_of("Llama", model)
        model(**inputs("Llama"))
    assert len(sight) == 2
    assert before == {name: p.data_ptr() for name, p in model.named_parameters()}
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.usefixtures("users_view")
def test_a_model_with_several_inputs_names_the_way_out():
    config = transformers.CLIPConfig(text_config=PLAIN, vision_config=IMAGE)
    model = transformers.CLIPModel(config)
    with pytest.raises(ConfigError, match="got CLIPModel: .*; try a part of it"):
        rg.cost(model, source=12)
    text = transformers.CLIPTextModel(model.config.text_config)  # before version 5 no part is one
    assert rg.cost(text, source=12).multiply_adds > 0


def test_a_folder_needs_its_config_alone(tmp_path):
    model = make("Llama")
    config = json.loads(model.config.to_json_string())
    config |= {"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    built = rg.runs.build_or_load_model(str(tmp_path))
    assert next(built.parameters()).is_meta
    found, want = cost_of("Llama", built), cost_of("Llama", model)
    assert (found.parameters, found.flops) == (want.parameters, want.flops)
    assert 2 * found["self-attention"].bytes_moved == want["self-attention"].bytes_moved


@pytest.mark.skipif(transformers.__version__ < "5", reason="transformers 4 counts its experts")
@pytest.mark.parametrize("batch", [1, 3])
def test_active_parameters_are_those_of_the_experts_that_a_token_uses(batch):
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 50}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 8}
    config = transformers.MixtralConfig(**sizes, num_experts_per_tok=2)
    cost = rg.cost(transformers.MixtralForCausalLM(config), source=7, batch=batch)
    assert cost.parameters - cost.active_parameters == 2 * 6 * (3 * 32 * 48)  # six idle of eight
    dense = rg.cost(transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)), source=7)
    assert dense.active_parameters == dense.parameters
