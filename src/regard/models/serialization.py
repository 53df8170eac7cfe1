"""Models on disk: one safetensors file with the weights and, in its header, the config as JSON.

One file, written beside its place and moved there in one step: weights and config can neither be
parted nor half written. Nothing in it can run, unlike a pickle.
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_type_hints

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from regard.errors import ConfigError, FileError, RegardError
from regard.files import atomic_path, parse_json
from regard.models.quantization import is_quantized, pack_int8, swap_int8_modules, unpack_int8

WEIGHTS_FILE = "model.safetensors"
VERSION = 1  # of the file's layout; raise it when an older reader would go wrong
COUNT_FIELDS = (
    "layers",
    "decoder_layers",
    "stages",
    "blocks",
)  # each of them has weights of its own
MAX_UNCHECKED_COUNT = 64  # of those that any file may claim: so many are built at once
MAX_INT_VALUE = 1 << 31  # any other number in a config
MAX_BUFFER_BYTES = 256 << 20  # bytes of tables that are computed and not saved, such as sinusoids


def save(model: nn.Module, path: str | Path) -> Path:
    """Write a model to a file ending in .safetensors, or into a folder; the file's path comes back.

    >>> from regard.models import LanguageModel, language_tiny
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> save(LanguageModel(language_tiny(vocab=10)), folder).name
    'model.safetensors'
    """
    kind, config = type(model).__name__, getattr(model, "config", None)
    if config is None or _kinds().get(kind) is not type(model):
        known = ", ".join(sorted(_kinds()))
        raise ConfigError(f"model: needs one of {known}, got {kind}; try model.state_dict()")
    tensors = {name: x.detach().cpu().contiguous() for name, x in _own(model).items()}
    header: dict[str, Any] = {"model": kind, "version": VERSION, "config": asdict(config)}
    if is_quantized(model):
        tensors, header["int8"] = pack_int8(tensors), True
    header["checksum"] = checksum(tensors)
    file = _file(path)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_safetensors(tensors, {"regard": json.dumps(header)}, file)
    except OSError as error:
        raise FileError(f"{file}: cannot be written, {error.strerror or error}") from error
    return file


def load(path: str | Path) -> nn.Module:
    """Read a model that `save` wrote, ready for use: on the CPU, in evaluation mode.

    >>> from regard.models import LanguageModel, language_tiny
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = save(LanguageModel(language_tiny(vocab=10)), folder)
    >>> load(folder).config.vocab
    10
    """
    file = Path(path) if Path(path).is_file() else _file(path)
    header, tensors = _read(file)
    whole = bool(header.get("int8"))
    tensors = _unpacked(tensors, file) if whole else tensors
    model = _build(header, tensors, file)
    return (swap_int8_modules(model) if whole else model).eval()


def build(config: Any) -> nn.Module:
    """The model that a config is for, freshly drawn.

    >>> from regard.models import language_tiny
    >>> type(build(language_tiny(vocab=10))).__name__
    'LanguageModel'
    """
    for kind in _kinds().values():
        if _config_of(kind) is type(config):
            return kind(config)
    known = ", ".join(config_types())
    raise ConfigError(f"config: needs one of {known}, got {type(config).__name__}")


def config_types() -> dict[str, type]:
    """Every config that a model can be built from, by its name.

    >>> "LanguageConfig" in config_types()
    True
    """
    return {_config_of(kind).__name__: _config_of(kind) for kind in _kinds().values()}


def _file(path: str | Path) -> Path:
    path = Path(path)
    return path if path.suffix == ".safetensors" else path / WEIGHTS_FILE


def write_safetensors(tensors: dict[str, Tensor], header: dict[str, str], file: Path) -> None:
    """Beside its place first, and moved there once it is on the disk: never half a file."""
    try:
        with atomic_path(file) as place:
            save_file(tensors, place, header)
    except SafetensorError as error:  # its way to say that the disk is full
        raise OSError(str(error)) from error


def read_safetensors(file: Path, writer: str) -> tuple[str | None, dict[str, Tensor]]:
    """Our header and all tensors of a safetensors file, or one clear error about it."""
    if not file.is_file():
        raise FileError(f"{file}: needs to be a file that `{writer}` wrote, got nothing there")
    try:
        with safe_open(file, "pt") as opened:
            header = (opened.metadata() or {}).get("regard")
            return header, {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise FileError(
            f"{file}: needs a whole safetensors file, got {file.stat().st_size} bytes that are "
            f"truncated, damaged or something else ({error})"
        ) from error


def _read(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    header, tensors = read_safetensors(file, "save")
    if header is None:
        raise FileError(f"{file}: needs our header, got foreign weights; try from_transformers")
    header = _parse(header, file)
    if (got := checksum(tensors)) != header["checksum"]:
        raise FileError(
            f"{file}: needs checksum {header['checksum']}, got {got}: its numbers were damaged"
        )
    return header, tensors


def _parse(text: str, file: Path) -> dict[str, Any]:
    try:
        header = parse_json(text)
    except ValueError as error:
        raise FileError(f"{file}: needs JSON in its header, got {error}") from error
    names = ("model", "version", "config", "checksum")
    if not isinstance(header, dict) or set(names) - set(header):
        raise FileError(f"{file}: needs {', '.join(names)} in its header, got {text[:80]}")
    if header["version"] != VERSION:
        raise FileError(
            f"{file}: needs version {VERSION}, got {header['version']}; try a newer regard"
        )
    return header


def _unpacked(tensors: dict[str, Tensor], file: Path) -> dict[str, Tensor]:
    try:
        return unpack_int8(tensors)
    except (RuntimeError, TypeError) as error:  # a scale of another shape than its weight
        raise FileError(f"{file}: needs a scale for each row of a weight, got {error}") from error


def _build(header: dict[str, Any], tensors: Mapping[str, Tensor], file: Path) -> nn.Module:
    kinds, kind, given = _kinds(), header["model"], header["config"]
    if kind not in kinds:
        raise FileError(f"{file}: needs a known model, got {kind!r}{_nearest(kind, kinds)}")
    made = _config_of(kinds[kind])
    known = {field.name: field for field in fields(made)}
    if not isinstance(given, dict):
        raise FileError(f"{file}: needs a config of names and values, got {given!r}")
    for name in given:
        if name not in known:
            raise FileError(
                f"{file}: needs a config of {made.__name__}, got unknown {name!r}"
                f"{_nearest(name, known)}"
            )
    for name, field in known.items():
        if name not in given and field.default is MISSING and field.default_factory is MISSING:
            raise FileError(f"{file}: needs {name!r} in its config, got none")
    values = {name: tuple(x) if isinstance(x, list) else x for name, x in given.items()}
    try:
        config = made(**values)
    except (RegardError, TypeError, ArithmeticError) as error:
        raise FileError(f"{file}: needs a valid config, got {error}") from error
    check_config_against_tensors(config, tensors, file)
    with torch.random.fork_rng(devices=[]):  # the initial weights are replaced; no seed is spent
        model = build(config)
    for name, x in _own(model).items():
        x.data = tensors[name]  # in place of copying: keeps ties, and the dtype it was saved in
    return model


def check_config_against_tensors(
    config: Any, tensors: Mapping[str, Tensor], file: str | Path
) -> None:
    """Compare a config with the weights of its file before any memory is taken for its model.

    Sizes in a file are claims: the model is built on the meta device, where it takes no memory,
    and only one whose weights are all there may be built for real.

    >>> from regard.models import language_tiny
    >>> check_config_against_tensors(language_tiny(vocab=10**6), {}, "a.file")  # no 256 MB are taken
    Traceback (most recent call last):
        ...
    regard.errors.FileError: a.file: needs 'embedding.token_embeddings' as float32 (1000000, 64), got none
    """
    for field in fields(config):
        value = getattr(config, field.name)
        if field.name in COUNT_FIELDS and value > max(len(tensors), MAX_UNCHECKED_COUNT):
            raise FileError(
                f"{file}: needs at most one of its {field.name} per tensor, {len(tensors)}, "
                f"got {value}"
            )
        if isinstance(value, int) and value > MAX_INT_VALUE:
            raise FileError(f"{file}: needs {field.name} of at most {MAX_INT_VALUE}, got {value}")
    try:
        with torch.device("meta"):
            model = build(config)
    except (RegardError, TypeError, ArithmeticError, RuntimeError) as error:
        raise FileError(f"{file}: needs a valid config, got {error}") from error
    _compare(_own(model), tensors, type(model).__name__, file)
    extra = sum(x.nbytes for x in model.buffers()) - sum(x.nbytes for x in tensors.values())
    if extra > MAX_BUFFER_BYTES:
        raise FileError(
            f"{file}: needs tables of at most {MAX_BUFFER_BYTES >> 20} MiB beside its weights, "
            f"got {extra >> 20} MiB"
        )


def _compare(own: Mapping[str, Tensor], tensors: Mapping[str, Tensor], kind: str, file) -> None:
    for name in tensors:
        if name not in own:
            raise FileError(
                f"{file}: needs the weights of {kind}, got unknown {name!r}{_nearest(name, own)}"
            )
    for name, x in own.items():
        if name not in tensors:
            raise FileError(f"{file}: needs {name!r} as {_kind(x)} {tuple(x.shape)}, got none")
        given = tensors[name]
        if given.shape != x.shape or given.is_floating_point() != x.is_floating_point():
            raise FileError(
                f"{file}: needs {name!r} as {_kind(x)} {tuple(x.shape)}, "
                f"got {_kind(given)} {tuple(given.shape)}"
            )


def _own(model: nn.Module) -> dict[str, Tensor]:
    """Every tensor that is saved, once: a tied one goes under its first name."""
    first = {}
    for name, x in model.state_dict(keep_vars=True).items():
        first.setdefault(id(x), (name, x))
    return dict(first.values())


def _kinds() -> dict[str, type[nn.Module]]:
    """Every public class of `models` that is made from a config."""
    from regard import models  # at call time: models imports this file

    public = {name: getattr(models, name) for name in models.__all__}
    return {
        name: kind
        for name, kind in public.items()
        if isinstance(kind, type) and issubclass(kind, nn.Module) and _config_of(kind) is not None
    }


def _config_of(kind: type[nn.Module]) -> Any:
    return get_type_hints(kind.__init__).get("config")


def checksum(tensors: Mapping[str, Tensor]) -> int:
    """One number of all names and numbers, to tell a damaged file."""
    total = 0
    for name in sorted(tensors):
        numbers = tensors[name].reshape(-1).view(torch.uint8).numpy()
        total = zlib.crc32(numbers.data, zlib.crc32(name.encode(), total))
    return total


def _nearest(name: str, among: Any) -> str:
    close = get_close_matches(str(name), list(among), 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _kind(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")
