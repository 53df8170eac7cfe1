"""Image classification: tasks, evaluators and recipes."""
