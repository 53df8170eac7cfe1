"""Language modelling: tasks, batches of windows, evaluators and recipes."""
