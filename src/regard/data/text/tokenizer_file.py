"""A tokenizer on disk: one JSON file, written whole or not at all, checked when it is read."""

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.errors import FileError
from regard.files import make_folder, parse_json, write_text

TOKENIZER_FILE = "tokenizer.json"
VERSION = 1


def write_tokenizer(
    kind: str,
    languages: Sequence[str],
    state: Any,
    folder: str | Path,
    *,
    normalizers: Sequence[str] = (),
) -> Path:
    """Write tokenizer.json into a folder, whole or not at all."""
    file = Path(folder) / TOKENIZER_FILE
    body = {"kind": kind, "languages": list(languages), "state": state}
    body |= {"normalize": list(normalizers)} if normalizers else {}
    text = json.dumps({"regard": VERSION, "checksum": _checksum(body), **body}, ensure_ascii=False)
    make_folder(file.parent)
    return write_text(file, text)


def read_tokenizer(path: str | Path) -> tuple[str, tuple[str, ...], Any, list[str], Path]:
    """Kind, languages, state, normalisation (none in older files), and the file they come from."""
    file = Path(path) / TOKENIZER_FILE if Path(path).is_dir() else Path(path)
    try:
        held = parse_json(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(
            f"{file}: needs to be a file that a tokenizer saved, got {error.strerror or error}"
        ) from error
    except ValueError as error:  # not JSON, or not UTF-8
        raise FileError(f"{file}: needs whole JSON, got {error}") from error
    names = {"regard", "checksum", "kind", "languages", "state"}
    if not isinstance(held, dict) or set(held) - {"normalize"} != names:
        raise FileError(f"{file}: needs {', '.join(sorted(names))}, got something foreign")
    if held["regard"] != VERSION:
        raise FileError(f"{file}: needs version {VERSION}, got {held['regard']!r:.40}")
    body = {name: held[name] for name in held if name not in ("regard", "checksum")}
    if _checksum(body) != held["checksum"]:
        raise FileError(f"{file}: needs checksum {held['checksum']}, got {_checksum(body)}")
    languages = held["languages"]
    if not isinstance(languages, list) or not all(isinstance(one, str) for one in languages):
        raise FileError(f"{file}: needs languages as a list of names, got {languages!r:.60}")
    return held["kind"], tuple(languages), held["state"], held.get("normalize", []), file


def _checksum(body: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())
