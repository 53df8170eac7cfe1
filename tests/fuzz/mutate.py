"""Mutations of an input, which is a few named files: of bytes, of tokens and of structure."""

import copy
import gzip
import json
import re
import zlib
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from random import Random
from typing import Any

Files = dict[str, bytes]
MAX_BYTES = 1 << 18  # of an input after mutation
TOKEN = re.compile(rb'"[^"\n]*"|[\w.+-]+|\s|[^\w\s]')
ODD_BYTES = [
    b"\0", b"\xff", b"\xff\xfe", b"\xef\xbb\xbf", b"\r", b"\n", b"\t", b'"', b"\\", b"\x80",
    b"\xed\xa0\x80", b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff", b"\xff" * 8,
    "\u2028\u0301".encode(), b"\x85", b"%s%n", b"\x1b[0m", b"\x1f\x8b",
]  # fmt: skip
ODD_TOKENS = [
    b"-1", b"0", b"1e999", b"nan", b"-0.0", b"9" * 400, b"2147483648", b"18446744073709551616",
    b"true", b"null", b'""', b"[]", b"{}", b"[[1]]", b'"\\ud800"', b"'x'", b"1979-05-27",
    b"1_000", b"[", b"}", b"<x>", b"&a;", b"../..", b"/dev/zero", b"a" * 300, b"\\x", b"=", b"#",
    "žluť".encode(), b"1/0", b"x**9**9", b"none", b",", b";",
]  # fmt: skip
ODD_VALUES: list[Any] = [
    None, True, 0, -1, 1, 2**31, 2**63, 10**30, 10**400, 0.5, -0.0, 1e308, "", "x", "\ud800",
    "\0", "../..", "a" * 300, "1", [], [[]], {}, {"x": 1}, [None], ["x"], [1, 2], [1e308],
]  # fmt: skip


def mutate(files: Files, rng: Random) -> Files:
    """A copy of the files in which one file has been changed once or a few times."""
    names = sorted(files)
    name = rng.choice(names)
    data = files[name]
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        data = _change(data, name, rng)[:MAX_BYTES]
    return {**files, name: data}


def _change(data: bytes, name: str, rng: Random) -> bytes:
    if data[:2] == b"\x1f\x8b" and rng.random() < 0.8:  # what is packed
        with suppress(OSError, EOFError, zlib.error):
            content = gzip.GzipFile(fileobj=BytesIO(data)).read(MAX_BYTES)  # it may be a bomb
            return gzip.compress(_change(content, name, rng), 1)
    if name.endswith(".safetensors") and rng.random() < 0.7:
        with suppress(Exception):  # of its own mutations
            return _change_safetensors(data, rng)
    kinds: list[Callable[[bytes, Random], bytes]] = [_change_bytes, _change_tokens, _change_lines]
    if data[:1] in (b"{", b"["):
        kinds = [_change_json, _change_json, _change_json, *kinds]
    return rng.choice(kinds)(data, rng)


def _change_bytes(data: bytes, rng: Random) -> bytes:
    at, to = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    to = min(to, at + rng.choice((1, 4, 64, 10**6)))
    return rng.choice([
        lambda: data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :],
        lambda: data[:at] + rng.choice(ODD_BYTES) + data[at:],
        lambda: data[:at] + rng.choice(ODD_BYTES) + data[to:],
        lambda: data[:at] + data[to:],
        lambda: data[:at] + data[at:to] * rng.choice((2, 3, 300)) + data[to:],
        lambda: data[:at],
        lambda: data[:at] + bytes(rng.randrange(256) for _ in range(rng.randrange(9))) + data[to:],
        lambda: data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
        if at < len(data) else data,
        lambda: data.decode("latin-1").encode(rng.choice(("utf-16", "utf-16-le", "utf-32"))),
    ])()  # fmt: skip


def _change_tokens(data: bytes, rng: Random) -> bytes:
    tokens = TOKEN.findall(data)
    words = [n for n, token in enumerate(tokens) if not token.isspace()]
    if not words:
        return data + rng.choice(ODD_TOKENS)
    at, other = rng.choice(words), rng.choice(words)
    match rng.randrange(5):
        case 0 | 1:
            tokens[at] = rng.choice(ODD_TOKENS)
        case 2:
            tokens[at] = tokens[other]
        case 3:
            del tokens[at]
        case _:
            tokens[at] = tokens[at] * rng.choice((2, 2, 1000))
    return b"".join(tokens)


def _change_lines(data: bytes, rng: Random) -> bytes:
    lines = data.splitlines(keepends=True)
    if not lines:
        return data
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(5):
        case 0:
            del lines[at]
        case 1:
            lines[at], lines[other] = lines[other], lines[at]
        case 2:
            lines[at:at] = [lines[other]] * rng.choice((1, 1, 500))
        case 3:
            lines[at] = lines[at].rstrip(b"\r\n") + rng.choice((b"\r", b"\r\n", b"", b"\n\n"))
        case _:
            lines[at] = lines[at][: rng.randrange(len(lines[at]) + 1)]
    return b"".join(lines)


def _change_json(data: bytes, rng: Random) -> bytes:
    """Changes a value of a JSON document, or of one line of JSON lines."""
    lines, at = [data], 0
    try:
        root = json.loads(data)
    except (ValueError, RecursionError):
        lines = data.split(b"\n")
        at = rng.randrange(len(lines))
        try:
            root = json.loads(lines[at])
        except (ValueError, RecursionError):
            return _change_tokens(data, rng)
    if rng.random() < 0.02:
        lines[at] = b"[" * 100_000
    else:
        with suppress(ValueError, RecursionError):  # what Python does not write
            lines[at] = json.dumps(_change_value(root, rng)).encode()
    return b"\n".join(lines)


def _change_value(root: Any, rng: Random) -> Any:
    root = copy.deepcopy(root)
    places = list(_places(root)) if isinstance(root, dict | list) else []
    if not places:
        return rng.choice(ODD_VALUES)
    holder, key = rng.choice(places)
    other, name = rng.choice(places)
    match rng.randrange(8):
        case 0 | 1 | 2:
            holder[key] = rng.choice(ODD_VALUES)
        case 3:
            del holder[key]
        case 4:
            holder[key] = copy.deepcopy(other[name])
        case 5:
            holder[key] = rng.choice(([holder[key]], {"x": holder[key]}, str(holder[key])))
        case 6:
            if isinstance(holder, dict):
                holder[rng.choice(("x", "", "kind", "\ud800", f"{key}s"))] = holder.pop(key)
            else:
                holder[key:key] = [copy.deepcopy(holder[key])] * rng.choice((1, 300))
        case _:
            if isinstance(holder[key], int | float) and abs(holder[key]) < 1e300:
                holder[key] = rng.choice((-holder[key], holder[key] + 1, holder[key] * 1000))
    return root


def _places(value: Any):
    """Every (holder, key) of a value."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


def _change_safetensors(data: bytes, rng: Random) -> bytes:
    """Changes the JSON at the start of a safetensors file, or the JSON inside its metadata."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    inner = header.get("__metadata__", {})
    nested = [key for key, text in inner.items() if text[:1] == "{"]
    if nested and rng.random() < 0.7:
        key = rng.choice(nested)
        inner[key] = _change_json(inner[key].encode(), rng).decode(errors="replace")
    else:
        header = _change_value(header, rng)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


def minimize(files: Files, still_fails: Callable[[Files], bool]) -> Files:
    """A smaller input that fails in the same way: pieces are cut while it still does."""
    for name in sorted(files, key=lambda name: -len(files[name])):
        size = max(1, len(files[name]) // 2)
        while size:
            at = 0
            while at < len(files[name]):
                data = files[name][:at] + files[name][at + size :]
                if still_fails({**files, name: data}):
                    files = {**files, name: data}
                else:
                    at += size
            size //= 2
    return files
