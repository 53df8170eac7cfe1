"""Attention heads measured, classified and described."""
