"""Recipes proposed for the kinds of the user's data, and written as TOML files."""

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from regard.errors import ConfigError, FileError, suggestion
from regard.files import is_stream, write_text
from regard.tasks.proposals.proposal import ALIASES, Proposal
from regard.tasks.recipe_file import parse_recipe

# kind: the module here that has `propose_KIND`
KINDS = {
    "pairs": "pairs",
    "text": "text",
    "images": "images",
    "speech": "speech",
    "tags": "annotated",
    "labels": "annotated",
}
# that every data set has
COMMON_NAMES = {"data", "manifest", "metadata", *(x for names in ALIASES.values() for x in names)}


def propose(kind: str, paths: Sequence[str | Path], *, name: str = "") -> Proposal:
    """A recipe for the user's data that trains in minutes on two CPU cores, with its reasons.

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
        hint = suggestion(kind, KINDS)
        raise ConfigError(f"kind: needs one of {', '.join(KINDS)}, got {kind!r}{hint}")
    module = import_module(f"regard.tasks.proposals.{KINDS[kind]}")  # images need Pillow
    function: Callable[..., Proposal] = getattr(module, f"propose_{kind}")
    files = [Path(path).expanduser() for path in paths]
    return function(files, name or default_name(files[0]))


def default_name(path: Path) -> str:
    """The name of a recipe for data: that of the file, or of the folder where the file's is common.

    >>> default_name(Path("data/My Pairs.tsv.gz")), default_name(Path("reviews/train.csv"))
    ('my-pairs', 'reviews')
    """
    full = Path(os.path.abspath(path))
    stems = ("-".join(x.name.partition(".")[0].lower().split()) for x in (full, *full.parents))
    return next((stem for stem in stems if stem and stem not in COMMON_NAMES), "task")


def write_proposal(
    kind: str,
    paths: Sequence[str | Path],
    out: str | Path,
    *,
    force: bool = False,
    improve: Callable[[Proposal], Proposal] | None = None,
) -> Proposal:
    """Look at data and write a recipe for it; an existing file is kept unless `force`.

    Args:
        kind: pairs, text, images, speech, tags or labels.
        paths: a folder or file; two aligned files for pairs.
        out: the .toml file.
        force: replace an existing file.
        improve: called with the proposal before it is written, as by `runs.tune_proposal`.

    >>> write_proposal("pairs", ["pairs.tsv"], "nowhere.toml")
    Traceback (most recent call last):
        ...
    regard.errors.FileError: pairs.tsv: needs to be a file or a folder, got no such file
    """
    file = Path(out)
    if file.exists() and not is_stream(file) and not force:
        raise FileError(f"{file}: needs to be a new file, got one that exists; try --force")
    name = "" if is_stream(file) or file.stem == "task" else file.stem
    proposal = propose(kind, paths, name=name)
    if improve is not None:
        proposal = improve(proposal)
    seconds, steps = proposal.measure_step(), proposal.recipe.train.steps
    command = f"regard new {kind} {' '.join(map(str, paths))}"
    lines = [f"Written by: {command}", *proposal.report.summary().splitlines()]
    lines += [f"warning: {line}" for line in proposal.report.warnings()]
    if seconds is not None:
        minutes = f"{max(1, round(seconds * steps / 60)):,} min"
        lines.append(
            f"{steps:,} steps of {seconds:.2g} s: about {minutes} here, evaluation not counted"
        )
    lines += proposal.notes
    text = proposal.to_toml(file.resolve().parent, comment="\n".join(lines))
    parse_recipe(text, file.name, base=file.resolve().parent)  # what is written can be read
    write_text(file, text)
    return proposal
