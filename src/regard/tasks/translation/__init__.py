"""Translation: tasks, search, evaluators and recipes."""
