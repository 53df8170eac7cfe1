"""Tokenizers on disk: one JSON file with a checksum, written atomically."""

import json
import zlib
from base64 import b64encode
from collections.abc import Iterator
from operator import index
from pathlib import Path
from typing import Any

from regard.errors import FileError
from regard.files import make_folder, parse_json, write_text

TOKENIZER_FILE = "tokenizer.json"
VERSION = 1
ID_GAP = 1 << 16  # that ids of tokens may lie beyond their count


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
    if file.suffix == ".model":
        state = b64encode(_read(file)).decode()
        return {"kind": "SentencePieceTokenizer", "languages": [], "state": state}, file
    data = _parse(file)
    if isinstance(data, dict) and {"model", "added_tokens"} <= set(data):
        _check_ids(data, file)
        state = {"json": _read(file).decode(), "names": _special_names(file.parent)}
        return {"kind": "HuggingFaceTokenizer", "languages": [], "state": state}, file
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


def check_token_ids(folder: Path) -> None:
    """Check the token ids in the JSON files of a folder before a library makes tables of them."""
    for name in (TOKENIZER_FILE, "tokenizer_config.json", "added_tokens.json", "vocab.json"):
        if (folder / name).is_file():
            _check_ids(_parse(folder / name), folder / name)


def _check_ids(data: Any, file: Path) -> None:
    """Ids have gaps, but not out of proportion: memory grows with the largest."""
    try:
        ids = [*_iter_ids(data, file.name)]
    except (TypeError, AttributeError, KeyError, IndexError, ValueError) as error:
        raise FileError(f"{file}: needs integers as ids of tokens, got {error}") from None
    most = ID_GAP + 4 * len(ids)
    if wrong := next((i for i in ids if not 0 <= i < most), None):
        raise FileError(f"{file}: needs ids below {most} for its {len(ids)} tokens, got {wrong}")


def _iter_ids(data: Any, name: str) -> Iterator[int]:
    if name == TOKENIZER_FILE:
        vocab = data["model"].get("vocab", {})  # a list where the order is the id
        yield from map(index, vocab.values() if isinstance(vocab, dict) else range(len(vocab)))
        yield from (index(token["id"]) for token in data.get("added_tokens") or ())
    elif name == "tokenizer_config.json":
        yield from map(int, data.get("added_tokens_decoder") or ())
    else:
        yield from map(index, data.values())


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise FileError(
            f"{file}: needs to be a file of a saved tokenizer, got {error.strerror or error}"
        ) from error


def _parse(file: Path) -> Any:
    try:
        return parse_json(_read(file).decode())
    except FileError:
        raise
    except ValueError as error:  # not JSON, or not UTF-8
        raise FileError(f"{file}: needs valid JSON, got {error}") from error


def _special_names(folder: Path) -> dict[str, str]:
    """Texts of special tokens, as tokenizer_config.json beside a tokenizer.json names them."""
    file = folder / "tokenizer_config.json"
    config, names = _parse(file) if file.is_file() else {}, {}
    if not isinstance(config, dict):
        raise FileError(f"{file}: needs an object of names and values, got {config!r:.40}")
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
