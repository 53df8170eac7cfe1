"""Atomic file writing, text reading in any Unicode encoding, HTML pages, Moodle XML."""

from regard import lazy_package

__all__, __getattr__, __dir__ = lazy_package(__name__, __file__)
