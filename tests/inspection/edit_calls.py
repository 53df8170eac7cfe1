"""One call per edit, for the tests that every edit passes; "SIGHT" stands for another run."""

import torch

EDITS = {
    "drop_head": {"site": "*", "heads": 0},
    "keep_heads": {"site": "*", "heads": 0},
    "scale_head": {"site": "*", "heads": 0, "factor": 2.0},
    "drop_key": {"site": "*", "keys": 0, "heads": 0, "queries": 1},
    "scale_key": {"site": "*", "keys": 0, "alpha": 2.0, "heads": 0},
    "jitter_key": {"site": "*", "sigma": 1.0, "keys": 0, "heads": 0, "seed": 0},
    "jitter_query": {"site": "*", "sigma": 1.0, "queries": 0, "heads": 0, "seed": 0},
    "scale_scores": {"site": "*", "factor": 2.0, "heads": 0},
    "uniform": {"site": "*", "heads": 0},
    "hardmax": {"site": "*", "heads": 0},
    "replace_window": {
        "site": "*", "rows": slice(0, 1), "keys": slice(0, 1), "weights": torch.zeros(1, 1),
        "heads": 0,
    },
    "patch": {
        "site": "*", "source": "SIGHT", "component": "values", "heads": 0, "positions": 0,
    },
}  # fmt: skip
MIXER_EDITS = {
    "scale_decay": {"mixer": "*", "factor": 0.5, "heads": 0},
    "freeze_decay": {"mixer": "*", "decay": 0.5, "heads": 0},
    "scale_write": {"mixer": "*", "factor": 2.0, "heads": 0},
    "freeze_write": {"mixer": "*", "beta": 0.5, "heads": 0},
    "drop_write": {"mixer": "*", "tokens": 1, "heads": 0},
    "reset_state": {"mixer": "*", "tokens": 1},
    "patch_state": {"mixer": "*", "source": "MIXER SIGHT", "token": 1},
}
ACTIVATION_EDITS = {
    "zero_activation": {"name": "*.heads", "positions": 0, "heads": 0, "units": 0},
    "mean_activation": {"name": "*.heads", "positions": 0, "heads": 0, "units": 0},
    "set_activation": {"name": "*.heads", "value": torch.zeros(1), "positions": 0, "heads": 0},
    "add_to_activation": {"name": "*.heads", "vector": torch.ones(1), "factor": 2.0, "heads": 0},
    "scale_activation": {"name": "*.heads", "factor": 2.0, "positions": 0, "heads": 0, "units": 0},
}
EXPERT_EDITS = {
    "drop_expert": {"name": "*", "experts": 0, "positions": 0},
    "force_expert": {"name": "*", "experts": 0, "positions": 0},
}
