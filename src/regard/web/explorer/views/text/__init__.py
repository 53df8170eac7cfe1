"""The text view: tokens, predictions, and every attention head, from one forward pass."""

from regard.web.explorer.views.text import head, parts, prediction, view

__all__ = ["head", "parts", "prediction", "view"]
