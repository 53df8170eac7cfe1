"""`regard version`: installed versions, for a bug report."""

import platform
from importlib.metadata import version as installed


def version() -> None:
    """Print the versions of Regard, Python and torch."""
    print(f"regard {installed('regard')}")
    print(f"python {platform.python_version()}")
    print(f"torch {installed('torch')}")  # from the metadata: importing torch takes seconds
