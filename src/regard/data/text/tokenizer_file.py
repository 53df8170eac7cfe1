"""Tokenizers on disk: one JSON file with a checksum, written atomically."""

import json
import zlib
from pathlib import Path
from typing import Any

from regard.errors import FileError
from regard.files import make_folder, parse_json, write_text

TOKENIZER_FILE = "tokenizer.json"
VERSION = 1


def write_tokenizer(body: dict[str, Any], folder: str | Path) -> Path:
    """Write tokenizer.json into a folder, atomically."""
    file = Path(folder) / TOKENIZER_FILE
    text = json.dumps({"regard": VERSION, "checksum": _checksum(body), **body}, ensure_ascii=False)
    make_folder(file.parent)
    return write_text(file, text)


def read_tokenizer(path: str | Path) -> tuple[dict[str, Any], Path]:
    """The kind, languages, state and normalizers of a saved tokenizer, and the path of its file."""
    file = Path(path) / TOKENIZER_FILE if Path(path).is_dir() else Path(path)
    try:
        data = parse_json(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(
            f"{file}: needs to be a file of a saved tokenizer, got {error.strerror or error}"
        ) from error
    except ValueError as error:  # not JSON, or not UTF-8
        raise FileError(f"{file}: needs valid JSON, got {error}") from error
    names = {"regard", "checksum", "kind", "languages", "state"}
    if not isinstance(data, dict) or set(data) - {"normalizers"} != names:
        raise FileError(f"{file}: needs {', '.join(sorted(names))}, got other keys")
    if data["regard"] != VERSION:
        raise FileError(f"{file}: needs version {VERSION}, got {data['regard']!r:.40}")
    body = {name: data[name] for name in data if name not in ("regard", "checksum")}
    if _checksum(body) != data["checksum"]:
        raise FileError(f"{file}: needs checksum {data['checksum']}, got {_checksum(body)}")
    languages = data["languages"]
    if not isinstance(languages, list) or not all(isinstance(name, str) for name in languages):
        raise FileError(f"{file}: needs languages as a list of names, got {languages!r:.60}")
    return body, file


def _checksum(body: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())
