"""Conversion between Hugging Face checkpoints and Regard models, both ways."""
