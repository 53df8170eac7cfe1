"""Other libraries kept from writing between our lines."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def silence_transformers() -> Iterator[None]:
    """Without the bars and notes of transformers; its errors still come."""
    try:
        from transformers.utils import logging
    except ImportError:  # an extra that a model of ours does not need
        yield
        return
    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()
