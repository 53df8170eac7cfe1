"""Data sources, tokenizers, augmentation and batching; real data sets without a download.

The stub, __init__.pyi, lists the names, which are imported on first use.
"""

from regard import lazy_package

__all__, __getattr__, __dir__ = lazy_package(__name__, __file__)
