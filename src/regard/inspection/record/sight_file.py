"""A sight on disk: one safetensors file, its numbers as tensors, its terms and words as JSON.

Written and checked as models are: in one step, with a checksum, and nothing in it can run.
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.errors import FileError, LookError
from regard.files import parse_json
from regard.inspection.record.sight import Sight
from regard.inspection.record.tensor_packer import TensorPacker
from regard.inspection.sites.site import Site
from regard.models.serialization import checksum, read_safetensors, write_safetensors
from regard.ops import biases, masks
from regard.ops.survey.statistics import Survey
from regard.ops.terms import Terms

FILE_NAME = "sight.safetensors"
VERSION = 2  # of the file's layout; raise it when an older reader would go wrong
TENSOR_FIELDS = ("q", "k", "v", "out", "lse")
TEXT_FIELDS = ("name", "path", "call", "kind", "query_tokens", "key_tokens")
MASKS = {
    kind.__name__: kind
    for kind in (masks.Causal, masks.Local, masks.Chunked, masks.Padding)
    + (masks.Documents, masks.DenseMask, masks.Both, masks.Either)
}
BIASES = {
    kind.__name__: kind
    for kind in (biases.ALiBi, biases.Toeplitz, biases.Buckets, biases.RelativeKeys)
    + (biases.DenseBias, biases.SumBias)
}


def save_sight(sight: Sight, path: str | Path) -> Path:
    """Write a sight to a file ending in .safetensors, or into a folder; its path comes back."""
    shelf = TensorPacker()
    sites = [_described(site, shelf) for site in sight.sites]
    tensors = shelf.tensors()
    header: dict[str, Any] = {"sight": sites, "skipped": sight.skipped, "version": VERSION}
    header |= {"unmatched": sight.unmatched}
    header["checksum"] = _checksum(header, tensors)
    file = _file(path)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_safetensors(tensors, {"regard": json.dumps(header)}, file)
    except OSError as error:
        raise FileError(f"{file}: cannot be written, {error.strerror or error}") from error
    return file


def load_sight(path: str | Path) -> Sight:
    """Read what `sight.save` wrote: the same numbers, later and elsewhere, without the model.

    >>> import tempfile
    >>> layer = rg.nn.MultiHeadAttention(2, 1)
    >>> with rg.look(layer) as sight:
    ...     _ = layer(torch.ones(1, 3, 2))
    >>> rg.load_sight(sight.save(tempfile.mkdtemp()))
    Sight of 1 attentions
      MultiHeadAttention: self, 1 heads, 3 queries, 3 keys
    """
    file = Path(path) if Path(path).is_file() else _file(path)
    header, tensors = _read(file)
    try:
        sites = [_site(described, tensors) for described in header["sight"]]
        return Sight(sites, dict(header["skipped"]), list(header.get("unmatched", ())))
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise FileError(
            f"{file}: needs sites as `save_sight` writes them, got {error!r}"
        ) from error


def _file(path: str | Path) -> Path:
    path = Path(path)
    return path if path.suffix == ".safetensors" else path / FILE_NAME


def _described(site: Site, shelf: TensorPacker) -> dict[str, Any]:
    if site.terms.score is not None:
        raise LookError(
            f"{site.name}: needs the dot product to be saved, got a score of its own, which is "
            "code; try Sight([site for site in sight if site.terms.score is None])"
        )
    told: dict[str, Any] = {name: getattr(site, name) for name in TEXT_FIELDS}
    told |= {name: shelf.add(getattr(site, name)) for name in TENSOR_FIELDS}
    told["terms"] = {
        f.name: _told(getattr(site.terms, f.name), shelf, site) for f in fields(site.terms)
    }
    if site.recorded_survey is not None:
        told["recorded_survey"] = {
            f.name: shelf.add(value)
            for f in fields(site.recorded_survey)
            if (value := getattr(site.recorded_survey, f.name)) is not None
        }
    return told


def _told(x: Any, shelf: TensorPacker, site: Site) -> Any:
    """A mask, a bias or a number as JSON; tensors go to the shelf."""
    if isinstance(x, Tensor):
        return {"tensor": shelf.add(x)}
    if x is None or isinstance(x, bool | int | float):
        return x
    kind = type(x).__name__
    if type(x) not in (*MASKS.values(), *BIASES.values()):
        raise LookError(
            f"{site.name}: needs masks and biases of ours to be saved, got {kind}; "
            "try it as a tensor, mask=….dense(queries, keys)"
        )
    inner = {f.name: _told(getattr(x, f.name), shelf, site) for f in fields(x)}
    return {"bias" if isinstance(x, biases.Bias) else "mask": kind, "of": inner}


def _read(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    text, tensors = read_safetensors(file, "sight.save")
    return _checked(text, tensors, file), tensors


def _checked(text: str | None, tensors: Mapping[str, Tensor], file: Path) -> dict[str, Any]:
    try:
        header = parse_json(text or "null")
    except ValueError as error:
        raise FileError(f"{file}: needs JSON in its header, got {error}") from error
    if not isinstance(header, dict) or {"sight", "skipped", "version", "checksum"} - set(header):
        kind = "a model; try models.load" if text and "config" in text else "another file"
        raise FileError(f"{file}: needs a sight, got {kind}")
    if header["version"] not in (1, VERSION):
        raise FileError(
            f"{file}: needs version {VERSION}, got {header['version']}; try a newer regard"
        )
    # version 1 had a checksum of its numbers only
    got = checksum(tensors) if header["version"] == 1 else _checksum(header, tensors)
    if got != header["checksum"]:
        raise FileError(
            f"{file}: needs checksum {header['checksum']}, got {got}: its numbers or its index "
            "were damaged; try the file it was copied from"
        )
    return header


def _checksum(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> int:
    """One number of all there is: the index as written, and the tensors."""
    rest = {name: value for name, value in header.items() if name != "checksum"}
    return zlib.crc32(json.dumps(rest, sort_keys=True).encode(), checksum(tensors))


def _site(told: dict[str, Any], tensors: Mapping[str, Tensor]) -> Site:
    said: dict[str, Any] = {name: told[name] for name in TEXT_FIELDS}
    said |= {name: TensorPacker.get(told[name], tensors) for name in TENSOR_FIELDS}
    said["terms"] = Terms(**{name: _made(x, tensors) for name, x in told["terms"].items()})
    if "recorded_survey" in told:
        found = told["recorded_survey"].items()
        said["recorded_survey"] = Survey(
            **{name: TensorPacker.get(place, tensors) for name, place in found}
        )
    return _consistent(Site(**said))


def _consistent(site: Site) -> Site:
    """The site, if its parts are of one attention; an index of an older file has no checksum."""
    batch, heads, queries, _ = site.q.shape
    keys, value = site.k.shape[2], site.v.shape[3]
    fits = site.v.shape[:3] == site.k.shape[:3] and site.k.shape[0] == batch
    fits = fits and site.k.shape[1] and heads % site.k.shape[1] == 0
    fits = fits and site.out.shape == (batch, heads, queries, value)
    fits = fits and site.lse.shape == (batch, heads, queries)
    for tokens, count in ((site.query_tokens, queries), (site.key_tokens, keys)):
        rows = [] if tokens is None else tokens
        fits = fits and (not rows or len(rows) == batch) and all(len(r) == count for r in rows)
    if not (fits and site.kind in ("self", "cross") and isinstance(site.name, str)):
        raise ValueError(f"{site.name!r} with parts that do not fit each other")
    return site


def _made(told: Any, tensors: Mapping[str, Tensor]) -> Any:
    if not isinstance(told, dict):
        return told
    if "tensor" in told:
        return TensorPacker.get(told["tensor"], tensors)
    kinds: dict[str, Any] = MASKS if "mask" in told else BIASES
    kind = kinds[told["mask"] if "mask" in told else told["bias"]]
    return kind(**{name: _made(x, tensors) for name, x in told["of"].items()})
