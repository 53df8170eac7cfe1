"""Values of every block option other than its default, from the types of the fields."""

from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from regard.nn import BlockOptions
from regard.ops import RopeScaling

NUMBERS: dict[str, Any] = {  # of the fields whose type does not say what is valid
    "kv_heads": 1,
    "head_dim": 24,
    "ffn_dim": 40,
    "eps": 0.3,
    "scale": 0.3,
    "softcap": 0.7,
    "rope_theta": 50.0,
    "rope_dim": 4,
    "rope_scaling": RopeScaling("yarn", 4.0, 16, high=2.0, amplitude=1.2),
}


def values(config: type) -> list[tuple[str, Any]]:
    """Each option of a block with every value but the default of this config."""
    hints, options = get_type_hints(BlockOptions), []
    defaults = {field.name: field.default for field in fields(config)}
    for name, hint in hints.items():
        if name in NUMBERS:
            choices = [NUMBERS[name]]
        elif get_origin(hint) is Literal:
            choices = get_args(hint)
        elif name.endswith("dropout"):
            choices = [0.3]
        else:
            assert bool in (hint, *get_args(hint)), f"NUMBERS: needs a value of {name}"
            choices = [True, False]
        options += [(name, value) for value in choices if value != defaults[name]]
    return options
