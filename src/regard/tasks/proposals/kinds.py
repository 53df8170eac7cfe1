"""The kinds of data that a recipe is proposed for."""

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from regard.errors import ConfigError, suggestion
from regard.tasks.proposals.proposal import Proposal

# kind: the module here that has `propose_KIND`
KINDS = {
    "pairs": "pairs",
    "text": "text",
    "images": "images",
    "speech": "speech",
    "tags": "annotated",
    "labels": "annotated",
}


def propose(kind: str, paths: Sequence[str | Path], *, name: str = "") -> Proposal:
    """A recipe for own data that trains in minutes on two CPU cores, with its reasons.

    Args:
        kind: pairs, text, images, speech, tags or labels.
        paths: a folder or file; two aligned files for pairs.
        name: of the recipe; by default that of the data.

    >>> propose("pair", ["pairs.tsv"])
    Traceback (most recent call last):
        ...
    regard.errors.ConfigError: kind: needs one of pairs, text, images, speech, tags, labels, got 'pair'; try pairs
    """  # noqa: E501
    if kind not in KINDS:
        hint = suggestion(kind, KINDS, 0.5)
        raise ConfigError(f"kind: needs one of {', '.join(KINDS)}, got {kind!r}{hint}")
    module = import_module(f"regard.tasks.proposals.{KINDS[kind]}")  # images need Pillow
    function: Callable[..., Proposal] = getattr(module, f"propose_{kind}")
    files = [Path(path).expanduser() for path in paths]
    return function(files, name or default_name(files[0]))


def default_name(path: Path) -> str:
    """The name of a recipe for data: that of the folder or file.

    >>> default_name(Path("data/My Pairs.tsv.gz"))
    'my-pairs'
    """
    stem = os.path.basename(os.path.abspath(path)).partition(".")[0].lower()
    return "-".join(stem.split()) or "task"
