"""The text view: tokens, predictions, and every attention head, from one forward pass."""

from regard.web.explorer.views.text import compare, head, parts, view

__all__ = ["compare", "head", "parts", "view"]
