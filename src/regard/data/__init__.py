"""Sources, tokenizers and batches: real data without downloads."""

__all__: list[str] = []
