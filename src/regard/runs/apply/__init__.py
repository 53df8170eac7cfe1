"""A run applied to inputs: by the verb of its task, or by `apply` for any task."""
