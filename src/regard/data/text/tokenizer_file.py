"""Tokenizers on disk: one JSON file with a checksum, written atomically."""

import json
import zlib
from base64 import b64encode
from pathlib import Path
from typing import Any

from regard.errors import FileError
from regard.files import make_folder, parse_json, write_text

TOKENIZER_FILE = "tokenizer.json"
VERSION = 1


def write_tokenizer(body: dict[str, Any], folder: str | Path) -> Path:
    """Write a .json file, or tokenizer.json into a folder, atomically."""
    file = Path(folder) if Path(folder).suffix == ".json" else Path(folder) / TOKENIZER_FILE
    text = json.dumps({"regard": VERSION, "checksum": _checksum(body), **body}, ensure_ascii=False)
    make_folder(file.parent)
    return write_text(file, text)


def read_tokenizer(path: str | Path) -> tuple[dict[str, Any], Path]:
    """The kind, languages, state and normalizers of a saved tokenizer, and the path of its file.

    Also reads tokenizer.json of Hugging Face and SentencePiece models, which have no languages.
    """
    file, folder = Path(path), Path(path)
    if folder.is_dir():
        names = (TOKENIZER_FILE, "tokenizer.model", "spiece.model")
        file = next((folder / x for x in names if (folder / x).is_file()), folder / TOKENIZER_FILE)
    try:
        if file.suffix == ".model":
            state = b64encode(file.read_bytes()).decode()
            return {"kind": "SentencePieceTokenizer", "languages": [], "state": state}, file
        text = file.read_text(encoding="utf-8")
        data = parse_json(text)
        if isinstance(data, dict) and {"model", "added_tokens"} <= set(data):
            state = {"json": text, "names": _special_names(file.parent)}
            return {"kind": "HuggingFaceTokenizer", "languages": [], "state": state}, file
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


def _special_names(folder: Path) -> dict[str, str]:
    """Texts of special tokens, as tokenizer_config.json beside a tokenizer.json names them."""
    file = folder / "tokenizer_config.json"
    config = parse_json(file.read_text(encoding="utf-8")) if file.is_file() else {}
    names = {}
    for role, key in SPECIAL_KEYS:
        value = config.get(key)
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            names.setdefault(role, value)
    return names


# keys of tokenizer_config.json, the first that is set for each role
SPECIAL_KEYS = (
    *(("pad", "pad_token"), ("bos", "bos_token"), ("bos", "cls_token")),
    *(("eos", "eos_token"), ("eos", "sep_token"), ("unk", "unk_token")),
)


def _checksum(body: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True).encode())
