"""Trained runs on disk and what one does with them: open, train, evaluate, apply, export.

The stub, __init__.pyi, lists the names, which are imported on first use.
"""

from regard import lazy_package

__all__, __getattr__, __dir__ = lazy_package(__name__, __file__)
