"""What the data files of a run were when it began, and what has changed since."""

import json
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from regard.errors import ConfigError, FileError
from regard.files import iter_chunks, open_binary, parse_json, write_text
from regard.tasks import Task

DATA_FILE = "data.json"
MAX_NAMED = 5  # files of one kind of change that are named

Stamps = dict[str, dict[str, Any]]  # by path: bytes, hash and, of a text, lines


def stamp_data(task: Task) -> Stamps:
    """Size, lines and hash of each file that a task reads; none for generated data."""
    try:
        files = task.data_files()
    except ConfigError:  # a task without files of its own
        return {}
    return {str(file): _stamp(file) for file in files}


def write_stamps(stamps: Stamps, folder: Path) -> None:
    """Write data.json of a run."""
    write_text(folder / DATA_FILE, json.dumps({"files": stamps}, indent=1) + "\n")


def check_data(task: Task, folder: Path, *, accept: bool = False) -> None:
    """Raise a FileError that names the files that changed since the run began.

    A run from before data.json is not checked. `accept` takes the data as it is from now on.
    """
    file = folder / DATA_FILE
    if not file.is_file():
        return
    if accept:
        write_stamps(stamp_data(task), folder)
        return
    try:
        before = {str(x): dict(stamp) for x, stamp in parse_json(file.read_text())["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileError(f"{file}: needs the files of the data, got {error}") from error
    if changes := describe_changes(before, stamp_data(task)):
        raise FileError(
            f"{folder}: needs the data that its training began with, got {'; '.join(changes)}; "
            f"try restoring it, or regard resume {folder} --accept-data to go on with this data"
        )


def describe_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What changed, by kind of change.

    >>> describe_changes({"a": {"lines": 9}, "b": {}}, {"a": {"lines": 7}})
    ['a: 7 lines, 9 before', 'gone: b']
    """
    changed = [x for x in before if x in after and before[x] != after[x]]
    lines = [_describe_file(x, before[x], after[x]) for x in changed[:MAX_NAMED]]
    if len(changed) > MAX_NAMED:
        lines.append(f"{len(changed) - MAX_NAMED:,} more files changed")
    missing, new = (_names(a, b) for a, b in ((before, after), (after, before)))
    return lines + [f"{kind}: {x}" for kind, x in (("gone", missing), ("new", new)) if x]


def _describe_file(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    for unit in ("lines", "bytes"):
        old, new = before.get(unit), after.get(unit)
        if isinstance(old, int) and isinstance(new, int) and old != new:
            return f"{name}: {new:,} {unit}, {old:,} before"
    return f"{name}: other content of the same size"


def _names(files: Iterable[str], others: Mapping[str, Any]) -> str:
    names = [x for x in files if x not in others]
    more = f" and {len(names) - MAX_NAMED:,} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more


def _stamp(file: Path) -> dict[str, Any]:
    """Of a text the whole is hashed; of images and sounds, which are many, the beginning."""
    digest, size, lines, is_text = blake2b(digest_size=16), 0, 0, True
    with open_binary(file) as opened:
        for chunk in iter_chunks(opened):
            digest.update(chunk)
            is_text = is_text and b"\0" not in chunk
            if not is_text:
                return {"bytes": file.stat().st_size, "hash": digest.hexdigest()}
            size, lines = size + len(chunk), lines + chunk.count(b"\n")
    return {"bytes": size, "lines": lines, "hash": digest.hexdigest()}
