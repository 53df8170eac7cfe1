"""A tiny random model of any type of transformers, with inputs for it.

Sizes are set by the names of a config's fields, in each of its parts (text, vision, …); of a list
with one kind of layer per entry, each kind is left once. `OTHERS` has what a type needs beside.
"""

import inspect
from typing import Any

import torch
import transformers
from torch import nn
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

MAX_PARAMETERS = 200_000_000
WIDTHS = "hidden_size d_model n_embd dim emb_dim embedding_size d_embed"
LAYERS = "n_layer n_layers num_layers num_hidden_layers encoder_layers decoder_layers depth "
LAYERS += "num_decoder_layers num_encoder_layers"
HEADS = "num_heads n_head n_heads num_attention_heads encoder_attention_heads "
HEADS += "decoder_attention_heads num_encoder_attention_heads num_decoder_attention_heads"
INNER = "intermediate_size d_inner d_ff n_inner ffn_dim encoder_ffn_dim decoder_ffn_dim"
LENGTHS = "max_position_embeddings n_positions max_seq_len n_ctx"
LENGTHS += " max_encoder_position_embeddings max_decoder_position_embeddings"
SIZES = {
    **{name: size for names, size in ((WIDTHS, 32), (LAYERS, 2), (HEADS, 4), (INNER, 48),
       (LENGTHS, 64)) for name in names.split()},
    "vocab_size": 50, "d_kv": 8, "d_head": 8, "head_dim": 8, "num_key_value_heads": 2,
    "rotary_dim": 4, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1, "sliding_window": 4, "block_size": 4, "attention_window": 4,
    "mamba_d_state": 8, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 2,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8, "v_head_dim": 8, "index_n_heads": 2, "index_head_dim": 8,
    "index_topk": 4, "num_experts": 8, "n_routed_experts": 8, "num_local_experts": 8,
    "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
    "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "vocab_size_per_layer_input": 50,
    "hidden_size_per_layer_input": 8, "global_head_dim": 8, "num_kv_shared_layers": 0,
}  # fmt: skip
IMAGES = {"image_size": 32, "patch_size": 8, "spatial_merge_size": 2, "temporal_patch_size": 1}
TOKENS = {"image_token_id": 40, "image_token_index": 40, "video_token_id": 41, "boi_token_id": 42}
RELATIVE = {"relative_attention": True, "pos_att_type": "c2p|p2c", "type_vocab_size": 0}
LATENT = {"head_dim": 4, "num_key_value_heads": 4}
LINEAR = {"layer_types": ["linear_attention", "full_attention"], "linear_num_heads": 4}
LINEAR |= {"linear_head_dim": 8, "num_experts": 8, "num_experts_per_token": 2}
LINEAR |= {"num_expert_group": 1, "mlp_layer_types": ["dense", "sparse"]}
ZAMBA = {"layers_block_type": ["linear_attention", "hybrid", "linear_attention"]}
ZAMBA |= {"num_hidden_layers": 3, "num_key_value_heads": 4}
HYBRID = ["linear_attention", "hybrid"] * 2
ATTENTIONS = ("full_attention", "sliding_attention")
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
MULTIMODAL_ROPE = "qwen2_vl_text qwen2_5_vl_text glm4v_text glm46v_text glm_ocr_text glmga_text "
MULTIMODAL_ROPE += "paddleocr_vl_text qwen2_5_omni_text"
LATENTS = "deepseek_v2 deepseek_v3 glm4_moe_lite minicpm3 youtu axk1 axk2 deepseek_v32 glm_moe_dsa"
OTHERS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(LATENTS.split(), LATENT),
    **dict.fromkeys(("mistral4_text", "mistral_large4_text"), {"num_key_value_heads": 4}),
    **dict.fromkeys(("kimi_linear", "bailing_hybrid"), LATENT | LINEAR),
    "falcon_h1": {"mamba_d_ssm": 64},
    **dict.fromkeys(("lfm2", "lfm3"), {"layer_types": ["conv", "full_attention"]}),
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "dots1": {"n_shared_experts": 1},
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "kv_n_heads": 2, "clip_qkv": 8}},
    "cohere_compass_text": {"rope_parameters": dict.fromkeys(ATTENTIONS, ROPE)},
    **dict.fromkeys(("dots3_note_text", "esmc"), {"num_key_value_heads": 4}),
    "minimax_m3_vl_text": {
        "layer_types": ["full_attention", "minimax_m3_sparse"],
        "index_block_size": 2,
        "index_topk_blocks": 2,
    },
    "longcat_flash": {"head_dim": 4, "num_key_value_heads": 4},
    "reformer": {"is_decoder": True, "axial_pos_embds": False, "attn_layers": ["local", "lsh"]},
    "blt": {"num_hidden_layers": 2},
    "mistral4": {"num_key_value_heads": 4},
    "blt_local_decoder": {"hidden_size_global": 32},
    "blt_local_encoder": {"hidden_size_global": 32},
    **dict.fromkeys(
        ("dots3_note_audio_encoder", "dots3_note_vision_encoder"),
        {"adapter_in_dim": 32, "adapter_input_size": 32, "adapter_out_dim": 32},
    ),
    "convnext": {"hidden_sizes": [16, 32], "num_stages": 2, "depths": [1, 1]},
    "convnextv2": {"hidden_sizes": [16, 32], "num_stages": 2, "depths": [1, 1]},
    "perceiver": {
        "d_latents": 32,
        "num_latents": 8,
        "d_model": 32,
        "num_blocks": 1,
        "num_self_attends_per_block": 2,
        "num_self_attention_heads": 4,
        "num_cross_attention_heads": 4,
    },
    "glm5_next_text": {
        "num_key_value_heads": 4,
        "index_kpool": 2,
        "qk_rope_head_dim": 0,
        "linear_num_heads": 4,
        "linear_head_dim": 8,
    },  # fmt: skip
    "shieldgemma2": {"yes_token_index": 5, "no_token_index": 6},
    "qwen2_5_omni_thinker": {"vision_start_token_id": 43},
    "qwen3_omni_moe_thinker": {"vision_start_token_id": 43},
    "molmo2_adapter": {"vision_feature_layer": [1, 0]},
    "granite_docling_vision": {"out_hidden_size": 32},
    "inkling2_vision": {"text_hidden_size": 32},
    "muse_spark_audio": {"out_hidden_size": 32},
    "xlstm": {"num_heads": 4, "hidden_size": 32, "use_cache": False},
    "zaya": {"num_experts_per_tok": 1},
    "neomme": {"head_dim": 16},
    "xmod": {"default_language": "en_XX"},
    **dict.fromkeys(
        MULTIMODAL_ROPE.split(), {"rope_parameters": ROPE | {"mrope_section": [2, 1, 1]}}
    ),
    "glm4v_moe_text": {"rope_parameters": ROPE | {"mrope_section": [2, 0, 0]}},
    "zamba": {"layers_block_type": HYBRID, "num_hidden_layers": 4},
    "qwen4_exp_text": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 8,
        "indexer_compress_ratio": 2,
    },
    "bamba": {"attn_layer_indices": [1]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "mamba2": {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 2},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "zamba2": ZAMBA | {"n_mamba_heads": 8, "mamba_ngroups": 2},
    "deberta": RELATIVE | {"max_relative_positions": 16},
    "deberta-v2": RELATIVE | {"position_buckets": 8},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 4},
}
MAPPINGS: dict[str, Any] = {
    "causal LM": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "seq2seq": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    "masked LM": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "image-text": modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    "image": modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
}
IDS = torch.randint(3, 40, (2, 12), generator=torch.Generator().manual_seed(1))
MASK = (torch.arange(12) < torch.tensor([[12], [8]])).long()


PICTURED = ("idefics", "kosmos-2", "vision-encoder-decoder", "pp_formulanet")  # never text alone


class Unbuildable(Exception):
    """Why no tiny model of a type could be made."""


def mappings_of(kind: str) -> list[str]:
    """The mappings of transformers that have a type."""
    return [name for name, kinds in MAPPINGS.items() if kind in kinds]


def all_kinds() -> list[str]:
    """Every type of the mappings."""
    return sorted({kind for names in MAPPINGS.values() for kind in names})


def tiny_config(config_class: Any, kind: str = "") -> Any:
    """A config of a class with small sizes, and those of its parts."""
    try:
        default = config_class()
    except Exception:  # one that needs arguments
        default = None
    known = {*inspect.signature(config_class).parameters, *config_class.attribute_map}
    values = {} if default is None else default.to_dict()
    known |= values.keys()
    options: dict[str, Any] = {n: x for n, x in (SIZES | IMAGES | TOKENS).items() if n in known}
    if values.get("depths"):  # stages whose windows fit the default size of an image
        options = {n: x for n, x in options.items() if n not in IMAGES}
    same = config_class.attribute_map
    options = {n: x for n, x in options.items() if not isinstance(values.get(same.get(n, n)), list)}
    options |= _one_layer_of_each(values)
    for name, part in config_class.sub_configs.items():
        part = type(getattr(default, name, None)) if "Auto" in part.__name__ else part
        if part is not type(None):
            options[name] = tiny_config(part, part.model_type).to_dict()
    rope = values.get("rope_parameters") or {}
    if "mrope_section" in rope:
        half = int(4 * rope.get("partial_rotary_factor", 1))
        section = [half - 2 * (half // 4), half // 4, half // 4]
        options["rope_parameters"] = rope | {"mrope_section": section}
    options |= OTHERS.get(kind, {})
    if isinstance(types := options.get("layer_types"), list) and "num_hidden_layers" in known:
        options["num_hidden_layers"] = len(types)
    return config_class(**options)


def _one_layer_of_each(values: dict[str, Any]) -> dict[str, Any]:
    """Lists with one entry per layer, cut to the first layers of each kind; two layers at least."""
    count = next((n for name in LAYERS.split() if isinstance(n := values.get(name), int)), 0)
    lists = {n: x for n, x in values.items() if isinstance(x, list) and len(x) == count > 1}
    if not lists:
        return {n: [1] * len(x) for n, x in values.items() if n == "depths" and x}
    first: dict[str, int] = {}
    for i, layer in enumerate(zip(*lists.values(), strict=True)):
        first.setdefault(repr(layer), i)
    chosen = [*first.values()][:6] if len(first) > 1 else [0, 1]
    found = {name: [x[i] for i in chosen] for name, x in lists.items()}
    return found | {name: len(chosen) for name in LAYERS.split() if name in values}


def make(kind: str, mapping: str = "causal LM") -> nn.Module:
    """A small random model in eval mode, in which maps are not flat."""
    torch.manual_seed(0)
    try:
        config = tiny_config(CONFIG_MAPPING[kind], kind)
        names = MAPPINGS[mapping][kind]
        model_class = getattr(transformers, names if isinstance(names, str) else names[0])
        if not isinstance(config, model_class.config_class):  # a language model of several parts
            config = getattr(config, "decoder", None) or config.get_text_config()
        with torch.device("meta"):
            size = sum(p.numel() for p in model_class._from_config(config).parameters())
        if size > MAX_PARAMETERS:
            raise Unbuildable(f"its small config has {size / 1e6:.0f} million parameters")
        model = model_class._from_config(config)
    except Unbuildable:
        raise
    except Exception as error:
        raise Unbuildable(one_line(error)) from error
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(6.0 if p.ndim > 1 and p.shape[0] != 50 else 1.0)
    return model.eval()


def make_first(kind: str, names: list[str]) -> nn.Module:
    """The model of the first of the mappings that can be made."""
    problem: Unbuildable | None = None
    for name in names:
        try:
            return make(kind, name)
        except Unbuildable as error:
            problem = problem or error
    raise problem or Unbuildable("it has no head over a vocabulary")


def text_inputs(model: Any, batch: int = 2) -> dict[str, Any]:
    """Token ids for a model, for a decoder too."""
    given: dict[str, Any] = {}
    names = inspect.signature(model.forward).parameters
    if "input_ids" in names:
        given["input_ids"] = IDS[:batch]
    if books := getattr(model.config, "num_codebooks", 0):  # of music: one row per codebook
        return {"input_ids": given["input_ids"].repeat_interleave(books, 0)}
    if "qformer_input_ids" in names:
        given["qformer_input_ids"] = given["input_ids"]
    if "bbox" in names and model.config.model_type == "udop":
        given["bbox"] = torch.zeros(batch, given["input_ids"].shape[1], 4)
    if "attention_mask" in names and batch == len(MASK):
        given["attention_mask"] = MASK
    if getattr(model.config, "is_encoder_decoder", False):
        given["decoder_input_ids"] = IDS[:batch, :7]
    return given


def image_inputs(model: Any, batch: int = 2) -> list[dict[str, Any]]:
    """Pixels of images, as most models take them; as patches with their grid, as Qwen's do."""
    vision = getattr(model.config, "vision_config", None) or model.config
    vision = vision if hasattr(vision, "to_dict") else model.config
    size = getattr(vision, "image_size", None) or 32
    height, width = size if isinstance(size, list | tuple) else (size, size)
    channels = getattr(vision, "num_channels", None) or getattr(vision, "in_channels", None) or 3
    generator = torch.Generator().manual_seed(2)
    pixels = torch.randn(batch, channels, height, width, generator=generator)
    patch = getattr(vision, "patch_size", None)
    patch = patch if isinstance(patch, int) else 8
    width = channels * patch**2 * (getattr(vision, "temporal_patch_size", None) or 1)
    flat = torch.randn(16, width, generator=generator)
    return [
        {"pixel_values": pixels},
        {"pixel_values": flat, "image_grid_thw": torch.tensor([[1, 4, 4]])},
        {"pixel_values": pixels, "image_sizes": torch.tensor([[height, width]] * batch)},
        {"pixel_values": pixels[:, None]},
    ]


def run(model: Any, kind: str) -> Any:
    """The output for a short text, or an image; and the vision tower of a model of both."""
    images = image_inputs(model)
    if mappings_of(kind) == ["image"]:
        calls = [images[0], {"input_ids": IDS}]
        out = _first(model, calls if model.main_input_name == "pixel_values" else calls[::-1])
    else:
        text = text_inputs(model)
        calls = [text, *(text | image for image in images)]
        named = inspect.signature(model.forward).parameters
        needs = kind in PICTURED or (p := named.get("pixel_values")) and p.default is p.empty
        # what a model is first called with is what `look` tries its modules with
        out = _first(model, calls[1:] if needs else calls)
    run_vision(model)
    return out[0] if isinstance(out, tuple) else next(iter(out.values()))


def run_vision(model: Any) -> bool:
    """Run the vision tower of a model of images and text, if it takes one of our inputs."""
    try:
        _first(model.get_image_features, image_inputs(model))
    except Exception:
        return False
    return True


def _first(function: Any, calls: list[dict[str, Any]]) -> Any:
    """The result of the first of several calls that does not raise."""
    problem: Exception | None = None
    for given in calls:
        try:
            return function(**given)
        except Exception as error:  # of a model that needs other inputs
            problem = problem or error
    raise problem or ValueError


def one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:110]}"
