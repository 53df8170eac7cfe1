"""The lesson view: a guided walk on any text and model, and the numbers of one attention."""

from regard.web.explorer.views.lesson import numbers, view

__all__ = ["numbers", "view"]
