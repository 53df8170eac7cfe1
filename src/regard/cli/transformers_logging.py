"""Progress bars and notes of transformers, silenced."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def silence_transformers() -> Iterator[None]:
    """Without the progress bars and notes of transformers; errors still appear."""
    try:
        from transformers.utils import logging
    except ImportError:  # an extra that a model of ours does not need
        yield
        return
    verbosity, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if has_bars:
            logging.enable_progress_bar()
