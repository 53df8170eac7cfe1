"""Rotary positions in configs of the hub: base, rotated share and scaling, read and written."""

import math
from typing import Any

from regard.errors import ConfigError
from regard.models.hub.family import HubConfig, HubOptions
from regard.models.language import LanguageConfig
from regard.ops import RopeScaling

ORIGINAL = "original_max_position_embeddings"
# the hub's names of `low` and `high`, and their defaults
TURNS = {
    "llama3": (("low_freq_factor", 1.0), ("high_freq_factor", 4.0)),
    "yarn": (("beta_slow", 1.0), ("beta_fast", 32.0)),
}


def read_rope(config: HubConfig, head_dim: int, rope: HubConfig | None = None) -> HubOptions:
    """Our options, from `rope_parameters` (release 5) or `rope_theta` and `rope_scaling`."""
    if rope is None:
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    assert rope is not None
    share = rope.get("partial_rotary_factor", config.get("partial_rotary_factor") or 1.0)
    dim = int(head_dim * share)
    return {
        "rope_theta": float(rope.get("rope_theta", config.get("rope_theta", 10000.0))),
        "rope_dim": None if dim == head_dim else dim,
        "rope_scaling": _read_scaling(config, rope),
    }


def _read_scaling(config: HubConfig, rope: HubConfig) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling(kind, float(rope["factor"]))
    if kind not in TURNS:
        known = ", ".join(("default", "linear", *TURNS))
        raise ConfigError(f"rope_type: needs one of {known}, got {kind!r}")
    # transformers lets the outer one win
    original = config.get(ORIGINAL) or rope.get(ORIGINAL) or config["max_position_embeddings"]
    low, high = (float(rope.get(name) or default) for name, default in TURNS[kind])
    factor = rope.get("factor") or config["max_position_embeddings"] / original
    if not rope.get("truncate", True):
        raise ConfigError("truncate: needs True, whole pairs at the ends of the ramp, got False")
    amplitude = _read_amplitude(rope, factor) if kind == "yarn" else 1.0
    return RopeScaling(kind, float(factor), original, low, high, amplitude)


def _read_amplitude(rope: HubConfig, factor: float) -> float:
    """YaRN's attention factor, 0.1 m ln(factor) + 1 unless it is stated."""
    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])
    slope, over, log = rope.get("mscale"), rope.get("mscale_all_dim"), math.log(max(factor, 1.0))
    if slope and over:
        return (0.1 * slope * log + 1) / (0.1 * over * log + 1)
    return 0.1 * log + 1


def rope_parameters(config: LanguageConfig) -> dict[str, Any]:
    """`rope_parameters` of release 5."""
    scaling, theta = config.rope_scaling, config.rope_theta or 10000.0  # None: the reader refuses
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    head_dim, dim = config.resolved_head_dim, config.resolved_rope_dim
    if dim != head_dim:
        share = dim / head_dim  # readers round head_dim · share down
        exact = int(head_dim * share) == dim
        rope["partial_rotary_factor"] = share if exact else math.nextafter(share, 1)
    if scaling is not None:
        rope |= {"rope_type": scaling.rope_type, "factor": scaling.factor}
        if scaling.rope_type in TURNS:
            (low, _), (high, _) = TURNS[scaling.rope_type]
            rope |= {low: scaling.low, high: scaling.high, ORIGINAL: scaling.original_positions}
        if scaling.rope_type == "yarn":
            rope["attention_factor"] = scaling.amplitude
    return rope


def write_rope(config: LanguageConfig) -> HubOptions:
    """The inverse of `read_rope`, for releases 4 and 5."""
    rope = rope_parameters(config)
    options = {"rope_theta": rope["rope_theta"], "rope_parameters": rope}
    if config.rope_scaling is not None:
        options["rope_scaling"] = dict(rope)
    for name in (ORIGINAL, "partial_rotary_factor"):
        if name in rope:
            options[name] = rope[name]
    return options
