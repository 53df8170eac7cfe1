"""Translation: data modules, search, evaluators and recipes."""
