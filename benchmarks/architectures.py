"""`look` and `cost` on every text architecture of transformers, from tiny random configs.

python benchmarks/architectures.py              # 5 minutes on two idle CPU cores
python benchmarks/architectures.py bloom xlnet  # some of them
python benchmarks/architectures.py --verify > docs/look/verified.md  # as `regard verify`

Per architecture: the largest relative error of the model's output while `look` records it, and of
weights · values against the model's own output of each attention; and whether `rg.cost` has every
parameter and the FLOPs of torch's counter. Scores of random weights reach 10⁴ in a few models,
where float32 keeps four digits of a weight.
"""

import inspect
import re
import signal
import sys
import warnings
from collections import defaultdict
from typing import Any

import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

import regard as rg
from regard.errors import RegardError
from regard.ops.terms import repeat_kv

SECONDS, MAX_PARAMETERS, TOLERANCE = 30, 60_000_000, 2e-5
WIDTHS = "hidden_size d_model n_embd dim emb_dim embedding_size d_embed"
LAYERS = "n_layer n_layers num_layers num_hidden_layers encoder_layers decoder_layers "
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
}  # fmt: skip
RELATIVE = {"relative_attention": True, "pos_att_type": "c2p|p2c", "type_vocab_size": 0}
LATENT = {"qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8, "head_dim": 4}
LATENT |= {"kv_lora_rank": 16, "q_lora_rank": 16, "num_key_value_heads": 4, "n_routed_experts": 8}
LATENT |= {"n_group": 1, "topk_group": 1, "moe_intermediate_size": 16}
INDEXED = LATENT | {"index_n_heads": 2, "index_head_dim": 8, "index_topk": 4}
DELTA = {"num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
DELTA |= {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "layer_types": None}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 2}
LINEAR = {"layer_types": ["linear_attention", "full_attention"], "linear_num_heads": 4}
LINEAR |= {"linear_head_dim": 8, "num_experts": 8, "num_experts_per_token": 2}
LINEAR |= {"num_expert_group": 1, "mlp_layer_types": ["dense", "sparse"]}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
EXPERTS |= {"shared_expert_intermediate_size": 16}
ZAMBA = {"layers_block_type": ["linear_attention", "hybrid", "linear_attention"]}
ZAMBA |= {"num_hidden_layers": 3, "num_key_value_heads": 4, "mamba_d_state": 8}
HALF = {"layer_types": ["mamba", "attention"]}
OTHERS = {
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3", "youtu"), LATENT),
    **dict.fromkeys(("axk1", "axk2"), LATENT),
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa"), INDEXED),
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), DELTA | EXPERTS),
    **dict.fromkeys(("kimi_linear", "bailing_hybrid"), LATENT | LINEAR),
    "falcon_h1": MAMBA | {"mamba_d_ssm": 64},
    "bamba": MAMBA | {"attn_layer_indices": [1]},
    "granitemoehybrid": MAMBA | HALF,
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "lfm3": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 2},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "zamba2": ZAMBA | {"n_mamba_heads": 8, "mamba_ngroups": 2},
    "deberta": RELATIVE | {"max_relative_positions": 16},
    "deberta-v2": RELATIVE | {"position_buckets": 8},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 4},
}
HEADS_OF = {
    transformers.AutoModelForCausalLM: modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    transformers.AutoModelForSeq2SeqLM: modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    transformers.AutoModelForMaskedLM: modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
}
PAGE = """# Verified architectures

`python benchmarks/architectures.py --verify` makes a tiny random language model of every text
architecture of `transformers` and runs all [checks](verification.md) on it. With {versions} it made
{count} models; on {passed} of them no error is above its bound. A number is the largest relative
error of a check; a number in brackets is the reason below why the check does not apply.
"""
IDS = torch.randint(3, 50, (2, 12), generator=torch.Generator().manual_seed(1))
MASK = (torch.arange(12) < torch.tensor([[12], [8]])).long()


class TooSlow(Exception):
    """The time limit of one architecture."""


def make(kind: str, auto: Any = transformers.AutoModel) -> Any:
    """A small random model, in which maps are not flat; None if it is not for text."""
    config_class = CONFIG_MAPPING[kind]
    if config_class.sub_configs:  # text beside images or sound
        return None
    known = {*inspect.signature(config_class).parameters, *config_class.attribute_map}
    known |= config_class().to_dict().keys()
    options = {name: size for name, size in SIZES.items() if name in known}
    torch.manual_seed(0)
    model = auto.from_config(config_class(**options | OTHERS.get(kind, {})))
    if "input_ids" not in inspect.signature(model.forward).parameters:
        return None
    if sum(p.numel() for p in model.parameters()) > MAX_PARAMETERS:
        return None
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(6.0 if p.ndim > 1 and p.shape[0] != 50 else 1.0)
    return model.eval()


@torch.no_grad()
def check_look(model: Any, given: dict[str, Any]) -> str:
    """Errors of the output and of weights · values, or the refusal."""
    want = model(**given)[0]
    try:
        with rg.look(model) as sight:
            got = model(**given)[0]
    except RegardError as error:
        return f"refused: {str(error).split('got none; ')[-1]}"
    rows = MASK.bool() if want.shape[:2] == MASK.shape else slice(None)
    size = want[rows].abs().max().clamp(min=1e-6)
    errors = [float((got[rows] - want[rows]).abs().max() / size)]
    for site in sight:
        off = (site.weights() @ repeat_kv(site.v, site.q) - site.out).abs().max()
        errors.append(float(off / site.v.abs().max().clamp(min=1e-9)))
    found = "exact" if max(errors) < TOLERANCE else "differs"
    found = "in part" if sight.skipped else found
    return f"{found}: output {errors[0]:.0e}, {len(sight)} maps {max(errors[1:]):.0e}"


def check_cost(model: Any, given: dict[str, Any]) -> str:
    """Whether parameters and FLOPs are exact, or the refusal."""
    given = {name: x for name, x in given.items() if name != "attention_mask"}
    try:
        cost = rg.cost(model, source=12, target=5, batch=2)
    except RegardError as error:
        return f"refused: {error}"
    for setting in (model.set_attn_implementation, model.set_experts_implementation):
        try:
            setting("eager")  # the counter does not know every fused kernel
        except (ValueError, NotImplementedError):
            continue
    counter = FlopCounterMode(display=False)
    with counter:
        model.requires_grad_(False)(**given)
    same = cost.parameters == sum(p.numel() for p in model.parameters())
    same = same and cost.flops == counter.get_total_flops()
    return f"{'exact' if same else 'differs'}: {cost.flops} and {counter.get_total_flops()} FLOPs"


def stop(*_: object) -> None:
    raise TooSlow


def make_language_model(kind: str) -> Any:
    """A small random model with a head over the vocabulary; None if the kind has none."""
    for auto, names in HEADS_OF.items():
        if kind in names:
            return make(kind, auto)
    return None


def verify_all(kinds: list[str]) -> None:
    """Print a page with one row per architecture: the largest error of each check."""
    reasons: dict[str, str] = {}  # their numbers
    rows, passed, bounds = [], 0, {}
    for kind in kinds or MODEL_MAPPING_NAMES:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            if (model := make_language_model(kind)) is None:
                continue
            given: dict[str, Any] = {"input_ids": IDS[:1]}
            if getattr(model.config, "is_encoder_decoder", False):
                given["decoder_input_ids"] = IDS[1:, :7]
            model(**given)
        except (Exception, TooSlow):  # a config that cannot be made small in this way
            continue
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        try:
            found = rg.inspection.verify(model, given)
        except RegardError as error:
            print(f"{kind}: {error}", file=sys.stderr)
            continue
        cells = []
        for result in found.results:
            bounds[result.name] = result.bound
            if result.error is None:
                reason = shorten(result.reason)
                cells.append(reasons.setdefault(reason, f"{len(reasons) + 1}"))
                cells[-1] = f"({cells[-1]})"
            else:
                mark = "" if result.status == "ok" else " **wrong**"
                cells.append(f"{result.error:.0e}".replace("e+00", "").replace("e-0", "e-") + mark)
        passed += found.passed
        print(f"{kind} {'passed' if found.passed else 'FAILED'}", file=sys.stderr, flush=True)
        rows.append(f"| {kind} | {' | '.join(cells)} |")
    versions = f"transformers {transformers.__version__} and torch {torch.__version__}"
    print(PAGE.format(versions=versions, count=len(rows), passed=passed))
    print(f"| architecture | {' | '.join(bounds)} |\n|---{'|---' * len(bounds)}|")
    print(f"| *bound* | {' | '.join(f'*{x:.0e}*' for x in bounds.values())} |")
    print("\n".join(rows) + "\n")
    print("\n".join(f"- ({number}) {reason}" for reason, number in reasons.items()))


def shorten(reason: str) -> str:
    """A reason without the names and sizes of one model."""
    if "needs a call too" in reason:
        return "name: needs a call too, as the blocks run several times"
    reason = re.sub(r" in \w+(Model|LM)$|: The size of .*| \(relative error.*", "", reason)
    reason = re.sub(r"got (an? )?[\w.]+ (whose|that|without)", r"got one \2", reason)
    reason = re.sub(r"'?\b(encoder|decoder)(\.\d+)?(\.\w+)*\b'?", "it", reason)
    reason = re.sub(r"\([\d, ]+\)", "one shape", reason, count=1)
    reason = re.sub(r"\([\d, ]+\)", "another", reason)
    reason = re.sub(r"block \d+", "a block", reason)
    return re.sub(r"\b(got|state,|one of|batch of) \d[\d.e-]*", r"\1 another", reason)


def main(kinds: list[str]) -> None:
    """Print one line per architecture, then the sums."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    signal.signal(signal.SIGPROF, stop)
    if "--verify" in kinds:
        verify_all([kind for kind in kinds if kind != "--verify"])
        return
    sums: dict[str, list[str]] = defaultdict(list)
    for kind in kinds or MODEL_MAPPING_NAMES:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            model = make(kind)
            if model is None:
                continue
            given: dict[str, Any] = {"input_ids": IDS}
            if "attention_mask" in inspect.signature(model.forward).parameters:
                given["attention_mask"] = MASK
            if getattr(model.config, "is_encoder_decoder", False):
                given["decoder_input_ids"] = IDS[:, :5]
            model(**given)
        except (Exception, TooSlow):  # a config that cannot be made small in this way
            sums["no tiny config"].append(kind)
            continue
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        for name, check in (("look", check_look), ("cost", check_cost)):
            found = check(model, given)
            print(f"{kind}: {name} {found}", flush=True)
            sums[f"{name} {found.split(':')[0]}"].append(kind)
    for name, found in sums.items():
        listed = "" if name.endswith("exact") else f": {', '.join(found)}"
        print(f"{name} {len(found)}{listed}")


if __name__ == "__main__":
    main(sys.argv[1:])
