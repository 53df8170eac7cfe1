"""Models on disk: one safetensors file with the weights and, in its header, the config as JSON.

The file is written to a temporary name and renamed, so that weights and config stay together and
are never half written. Unlike a pickle, it holds no code.
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from regard.errors import FileError, RegardError, suggestion
from regard.files import atomic_path, parse_json
from regard.models.config import CONFIGS, MODELS, build, get_config
from regard.nn.int8 import is_quantized, pack_int8, swap_int8_modules, unpack_int8
from regard.ops import RopeScaling

WEIGHTS_FILE = "model.safetensors"
VERSION = 1  # of the file layout; raise it when older readers would misread a file
# config fields that count parts with separate weights
COUNT_FIELDS = ("layers", "decoder_layers", "stages", "blocks")
MAX_UNCHECKED_COUNT = 64  # of such parts that a file may claim with fewer tensors
MAX_INT_VALUE = 1 << 31  # of any other integer in a config
MAX_BUFFER_BYTES = 256 << 20  # of buffers that are computed and not saved, such as sinusoids


def save(model: nn.Module, path: str | Path) -> Path:
    """Save a model to a .safetensors file or into a folder; returns the file's path.

    >>> import tempfile
    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=10))
    >>> save(model, tempfile.mkdtemp()).name
    'model.safetensors'
    """
    kind, config = type(model).__name__, asdict(get_config(model))
    tensors = {name: x.detach().cpu().contiguous() for name, x in unique_tensors(model).items()}
    header: dict[str, Any] = {"model": kind, "version": VERSION, "config": config}
    if is_quantized(model):
        tensors, header["int8"] = pack_int8(tensors), True
    header["checksum"] = checksum(tensors)
    return write_with_header(tensors, header, file_in(path, WEIGHTS_FILE))


def load(path: str | Path) -> nn.Module:
    """Load a model that `save` wrote, on the CPU and in evaluation mode.

    >>> import tempfile
    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=10))
    >>> load(save(model, tempfile.mkdtemp())).config.vocab
    10
    """
    file = Path(path) if Path(path).is_file() else file_in(path, WEIGHTS_FILE)
    header, tensors = _read(file)
    if not header.get("int8"):
        return _build(header, tensors, file).eval()
    try:
        tensors = unpack_int8(tensors)
    except (RuntimeError, TypeError) as error:  # a scale of another shape than its weight
        raise FileError(f"{file}: needs one scale per row of a weight, got {error}") from error
    return swap_int8_modules(_build(header, tensors, file)).eval()


def file_in(path: str | Path, name: str) -> Path:
    """The path of a .safetensors file, or of the file of this name in a folder."""
    path = Path(path)
    return path if path.suffix == ".safetensors" else path / name


def write_with_header(tensors: dict[str, Tensor], header: Mapping[str, Any], file: Path) -> Path:
    """Write tensors and a JSON header to a safetensors file; returns its path."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_safetensors(tensors, {"regard": json.dumps(header)}, file)
    except OSError as error:
        raise FileError(f"{file}: cannot be written, {error.strerror or error}") from error
    return file


def write_safetensors(tensors: dict[str, Tensor], header: dict[str, str], file: Path) -> None:
    """Write a safetensors file atomically: under a temporary name first, renamed when complete."""
    try:
        with atomic_path(file) as place:
            save_file(tensors, place, header)
    except SafetensorError as error:  # raised when the disk is full
        raise OSError(str(error)) from error


def read_safetensors(file: Path, writer: str) -> tuple[str | None, dict[str, Tensor]]:
    """The `regard` header entry (None if missing) and all tensors of a safetensors file.

    `writer` names the function that writes such files, for the error. The tensors are read into
    memory, not mapped: whatever happens to the file later, they stay as they are.
    """
    if not file.is_file():
        raise FileError(f"{file}: needs to be a file that `{writer}` wrote, got no such file")
    try:
        with safe_open(file, "pt", backend="pread") as opened:
            header = (opened.metadata() or {}).get("regard")
            return header, {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise FileError(
            f"{file}: needs a whole safetensors file, got {file.stat().st_size} bytes that are "
            f"truncated, damaged or something else ({error})"
        ) from error


def _read(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    text, tensors = read_safetensors(file, "save")
    if text is None:
        raise FileError(f"{file}: needs our header, got other weights; try models.from_pretrained")
    try:
        header = parse_json(text)
    except ValueError as error:
        raise FileError(f"{file}: needs JSON in its header, got {error}") from error
    names = ("model", "version", "config", "checksum")
    if not isinstance(header, dict) or set(names) - set(header):
        raise FileError(f"{file}: needs {', '.join(names)} in its header, got {text[:80]}")
    if (version := header["version"]) != VERSION:
        raise FileError(f"{file}: needs version {VERSION}, got {version}; try a newer regard")
    if (got := checksum(tensors)) != header["checksum"]:
        raise FileError(
            f"{file}: needs checksum {header['checksum']}, got {got}: its numbers were damaged"
        )
    return header, tensors


def _build(header: dict[str, Any], tensors: Mapping[str, Tensor], file: Path) -> nn.Module:
    kind, given = header["model"], header["config"]
    if not isinstance(kind, str) or kind not in MODELS:
        raise FileError(f"{file}: needs a known model, got {kind!r}{suggestion(str(kind), MODELS)}")
    config_class = CONFIGS[MODELS[kind]]
    known = {field.name: field for field in fields(config_class)}
    if not isinstance(given, dict):
        raise FileError(f"{file}: needs a config of names and values, got {given!r}")
    for name in given:
        if name not in known:
            raise FileError(
                f"{file}: needs a config of {config_class.__name__}, got unknown {name!r}"
                f"{suggestion(name, known)}"
            )
    for name, field in known.items():
        if name not in given and field.default is MISSING and field.default_factory is MISSING:
            raise FileError(f"{file}: needs {name!r} in its config, got none")
    values = {name: tuple(x) if isinstance(x, list) else x for name, x in given.items()}
    try:
        if isinstance(scaling := values.get("rope_scaling"), dict):  # the only option with its own
            values["rope_scaling"] = RopeScaling(**scaling)
        config = config_class(**values)
    except (RegardError, TypeError, ArithmeticError) as error:
        raise FileError(f"{file}: needs a valid config, got {error}") from error
    check_config_against_tensors(config, tensors, file)
    with torch.random.fork_rng(devices=[]):  # the initial weights are replaced; no seed is spent
        model = build(config)
    for name, x in unique_tensors(model).items():
        x.data = tensors[name]  # instead of a copy: keeps ties and the saved dtype
    return model


def check_config_against_tensors(
    config: Any, tensors: Mapping[str, Tensor], file: str | Path
) -> None:
    """Check that a config fits the tensors of its file, before memory is allocated for the model.

    Sizes in a file are untrusted: the model is first built on the meta device, without memory, and
    its parameters are compared with the tensors that are there.

    >>> from regard.models import language_tiny
    >>> check_config_against_tensors(language_tiny(vocab=10**6), {}, "a.file")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    regard.errors.FileError: a.file: needs 'embedding.token_embeddings' as float32 (1000000, 64)...
    """
    for field in fields(config):
        value = getattr(config, field.name)
        if not isinstance(value, int | float):  # of another type: `build` reports it
            continue
        if field.name in COUNT_FIELDS and value > max(len(tensors), MAX_UNCHECKED_COUNT):
            raise FileError(
                f"{file}: needs at most one of its {field.name} per tensor, {len(tensors)}, "
                f"got {value}"
            )
        if value > MAX_INT_VALUE:
            raise FileError(f"{file}: needs {field.name} of at most {MAX_INT_VALUE}, got {value}")
    try:
        with torch.device("meta"):
            model = build(config)
    except (RegardError, TypeError, ArithmeticError, RuntimeError) as error:
        raise FileError(f"{file}: needs a valid config, got {error}") from error
    _compare(unique_tensors(model), tensors, type(model).__name__, file)
    extra = sum(x.nbytes for x in model.buffers()) - sum(x.nbytes for x in tensors.values())
    if extra > MAX_BUFFER_BYTES:
        raise FileError(
            f"{file}: needs tables of at most {MAX_BUFFER_BYTES >> 20} MiB beside its weights, "
            f"got {extra >> 20} MiB"
        )


def _compare(needed: Mapping[str, Tensor], tensors: Mapping[str, Tensor], kind: str, file) -> None:
    for name in tensors:
        if name not in needed:
            hint = suggestion(name, needed)
            raise FileError(f"{file}: needs the weights of {kind}, got unknown {name!r}{hint}")
    for name, x in needed.items():
        if name not in tensors:
            raise FileError(f"{file}: needs {name!r} as {_kind(x)} {tuple(x.shape)}, got none")
        given = tensors[name]
        if given.shape != x.shape or given.is_floating_point() != x.is_floating_point():
            raise FileError(
                f"{file}: needs {name!r} as {_kind(x)} {tuple(x.shape)}, "
                f"got {_kind(given)} {tuple(given.shape)}"
            )


def unique_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The state dict without repeats: a tied tensor goes under its first name."""
    first = {}
    for name, x in model.state_dict(keep_vars=True).items():
        first.setdefault(id(x), (name, x))
    return dict(first.values())


def checksum(tensors: Mapping[str, Tensor]) -> int:
    """CRC-32 over names and bytes of all tensors, to detect damaged files."""
    total = 0
    for name in sorted(tensors):
        numbers = tensors[name].reshape(-1).view(torch.uint8).numpy()
        total = zlib.crc32(numbers.data, zlib.crc32(name.encode(), total))
    return total


def _kind(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")
