"""Speech recognition: data modules, evaluators and recipes."""
