"""Checkpoints on disk: atomic, verified, full or sharded."""
