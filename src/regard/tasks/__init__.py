"""Tasks: data settings, batches, loss, evaluation and use, registered by name; recipes.

The stub, __init__.pyi, lists the names, which are imported on first use: `regard --help` reads the
verbs, without torch.
"""

from regard import lazy_package

__all__, __getattr__, __dir__ = lazy_package(__name__, __file__)
