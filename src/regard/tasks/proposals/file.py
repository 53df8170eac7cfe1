"""Write the proposed recipe of own data as a TOML file."""

from collections.abc import Sequence
from pathlib import Path

from regard.errors import FileError
from regard.files import is_stream, write_text
from regard.tasks.proposals.kinds import propose
from regard.tasks.proposals.proposal import Proposal
from regard.tasks.recipe_file import parse_recipe


def write_proposal(
    kind: str, paths: Sequence[str | Path], out: str | Path, *, force: bool = False
) -> Proposal:
    """Look at data and write a recipe for it; an existing file is kept unless `force`.

    Args:
        kind: pairs, text, images, speech, tags or labels.
        paths: a folder or file; two aligned files for pairs.
        out: the .toml file.
        force: replace an existing file.

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
    seconds, steps = proposal.measure_step(), proposal.recipe.train.steps
    command = f"regard new {kind} {' '.join(map(str, paths))}"
    lines = [f"Written by: {command}", *proposal.report.summary().splitlines()]
    lines += [f"warning: {line}" for line in proposal.report.warnings()]
    if seconds is not None:
        minutes = f"{max(1, round(seconds * steps / 60)):,} min"
        lines.append(
            f"{steps:,} steps of {seconds:.2g} s: about {minutes} here, evaluation not counted"
        )
    text = proposal.to_toml(file.resolve().parent, comment="\n".join(lines))
    parse_recipe(text, file.name, base=file.resolve().parent)  # what is written can be read
    write_text(file, text)
    return proposal
