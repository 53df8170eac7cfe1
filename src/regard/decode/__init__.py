"""From logits to answers: caches, greedy and beam search."""

__all__: list[str] = []
