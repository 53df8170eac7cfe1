"""Language modelling: data modules, batches of windows, evaluators and recipes."""
