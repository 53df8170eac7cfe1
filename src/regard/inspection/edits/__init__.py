"""Edits of attention while a model runs, their effects on its output, and closed forms."""
