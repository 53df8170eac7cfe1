"""One loop for every model: schedules, checkpoints, exact resume, runs on disk."""

__all__: list[str] = []
