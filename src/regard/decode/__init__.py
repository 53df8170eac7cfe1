"""Decoding: steppers, key/value cache, greedy and beam search, sampling, CTC, streaming."""

from regard import lazy_package

__all__, __getattr__, __dir__ = lazy_package(__name__, __file__)
