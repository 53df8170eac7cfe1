"""The attention maps that a model computes by itself, to compare with."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from regard.inspection.adapters.model_calls import get_output, run_model
from regard.inspection.sites.site import Site
from regard.ops.intercept import AttentionCall, AttentionResult, Proceed, intercepting


def eager_maps(model: nn.Module, inputs: Any, sites: Sequence[Site]) -> tuple[list[Tensor], Tensor]:
    """Maps and output of the model's eager attention; for our models, softmax in float64."""
    if hasattr(model, "set_attn_implementation") and isinstance(inputs, dict):
        # each by itself: a tower may have no other form than eager (sound of Gemma 4)
        configs = {id(x): x for m in model.modules() if (x := vars(m).get("config")) is not None}
        selecting = [x for x in configs.values() if hasattr(x, "_attn_implementation_internal")]
        before = [(x, x._attn_implementation_internal) for x in selecting]
        model.set_attn_implementation("eager")  # pyright: ignore
        try:
            out = model(**inputs, output_attentions=True)
        finally:
            for config, implementation in before:
                config._attn_implementation_internal = implementation
        names = ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions")
        maps = {
            name: [x for x in getattr(out, name, None) or () if isinstance(x, Tensor)]
            for name in names
        }
        if maps["attentions"]:
            return maps["attentions"], get_output(out)
        left, ordered = {name: iter(x) for name, x in maps.items()}, []
        for site in sites:
            stack = site.path.split(".layers")[0].split(".block")[0]
            side = "encoder" if "encoder" in stack else "decoder"
            name = "cross_attentions" if site.kind == "cross" else f"{side}_attentions"
            if (x := next(left[name], None)) is not None:
                ordered.append(x)
        return ordered, get_output(out)
    maps_of_calls: list[Tensor] = []

    def collect(call: AttentionCall, proceed: Proceed) -> AttentionResult:
        scores = call.terms.score_tile(call.q.double(), call.k.double())
        maps_of_calls.append(scores.softmax(-1).nan_to_num(0))
        return proceed(call)

    with intercepting(collect):
        out = run_model(model, inputs)
    return maps_of_calls, get_output(out)
