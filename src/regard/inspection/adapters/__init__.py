"""Hooks into modules of regard, torch.nn and transformers that make their calls visible."""
