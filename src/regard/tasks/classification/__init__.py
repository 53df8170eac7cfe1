"""Image classification: data modules, evaluators and recipes."""
