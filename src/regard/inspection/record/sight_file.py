"""Sights on disk: one safetensors file with the tensors, and terms and tokens as JSON.

Written atomically with a checksum, as models are; loading runs no code from the file.
"""

import json
import zlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import ConfigError, FileError, LookError
from regard.files import parse_json
from regard.inspection.adapters.snapshot import memory_address
from regard.inspection.record.sight import Sight
from regard.inspection.sites.mixer_site import ConvolutionSite, MixerSite
from regard.inspection.sites.site import PatchGrid, Site
from regard.models.serialization import checksum, file_in, read_safetensors, write_with_header
from regard.ops.mixers import LinearMixer
from regard.ops.mixers.short_convolution import ShortConvolution
from regard.ops.survey.statistics import Survey
from regard.ops.term_registry import term_from_dict, term_to_dict
from regard.ops.terms import Terms

FILE_NAME = "sight.safetensors"
VERSION = 3  # of the file layout
TENSOR_FIELDS = ("q", "k", "v", "out", "lse")
TEXT_FIELDS = ("name", "path", "call", "kind", "query_tokens", "key_tokens")


MIXERS = {"linear": (LinearMixer, MixerSite), "convolution": (ShortConvolution, ConvolutionSite)}
TensorRef = dict[str, Any]  # where a packed tensor is, as JSON


@dataclass
class _Buffer:
    """Overlapping views of one storage: the first one, its keys, and the keys of all."""

    name: str
    view: Tensor
    view_keys: range
    keys: range
    refs: list[tuple[TensorRef, int]] = field(default_factory=list)

    def tensor(self) -> Tensor:
        """The union of the views."""
        if self.keys == self.view_keys:
            return self.view
        x, before = self.view, self.view_keys.start - self.keys.start
        shape = (*x.shape[:2], len(self.keys), x.shape[3])
        return x.as_strided(shape, x.stride(), x.storage_offset() - before * x.stride(2))


class TensorPacker:
    """Collects tensors and returns references; keys of a growing text are stored once.

    A generated text has one site per step, and the keys of each step are a view of one buffer.
    They are packed as one tensor, from the first key of any step to the last.

    >>> packer, keys = TensorPacker(), torch.arange(6.0).view(1, 1, 3, 2)
    >>> ref, _ = packer.add(keys[:, :, :2]), packer.add(keys)
    >>> tensors = packer.tensors()
    >>> len(tensors), TensorPacker.get(ref, tensors).shape
    (1, torch.Size([1, 1, 2, 2]))
    """

    def __init__(self) -> None:
        self._buffers: dict[Any, list[_Buffer]] = defaultdict(list)
        self._count = 0

    def add(self, x: Tensor) -> TensorRef:
        """Add a tensor and return its reference; of a meta tensor only the shape is stored."""
        if x.is_meta:
            return {"shape": list(x.shape), "dtype": str(x.dtype).removeprefix("torch.")}
        x = x.detach()
        # views of one buffer differ only in their keys, along axis 2
        step = x.stride(2) if x.ndim == 4 else 0
        offset = int(x.storage_offset())
        start, rest = divmod(offset, step) if step else (0, offset)
        keys = range(start, start + x.shape[2]) if step else range(1)
        shape = (*x.shape[:2], x.shape[3]) if step else x.shape
        group = self._buffers[memory_address(x), x.dtype, x.stride(), rest, shape]
        overlap = (b for b in group if max(b.keys.start, start) < min(b.keys.stop, keys.stop))
        buffer = next(overlap, None)
        if buffer is None:
            buffer = _Buffer(str(self._count), x, keys, keys)
            self._count += 1
            group.append(buffer)
        first, last = min(buffer.keys.start, start), max(buffer.keys.stop, keys.stop)
        buffer.keys = range(first, last)
        ref: TensorRef = {"name": buffer.name}
        buffer.refs.append((ref, start))
        if x.ndim == 4:
            ref["count"] = x.shape[2]
        return ref

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name; completes the references, so call it last."""
        buffers = [buffer for group in self._buffers.values() for buffer in group]
        for buffer in buffers:
            for ref, start in buffer.refs:
                ref["first"] = start - buffer.keys.start
        return {buffer.name: buffer.tensor().cpu().contiguous() for buffer in buffers}

    @staticmethod
    def get(ref: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Tensor:
        """The tensor of a reference."""
        if "shape" in ref:
            dtype = getattr(torch, ref["dtype"])
            return torch.empty(ref["shape"], dtype=dtype, device="meta")
        x = tensors[ref["name"]]
        if "count" not in ref:
            return x
        return x[:, :, ref["first"] : ref["first"] + ref["count"]]


def save_sight(sight: Sight, path: str | Path) -> Path:
    """Write a sight to a .safetensors file, or into a folder; returns the path of the file."""
    packer = TensorPacker()
    sites = [_encode_site(site, packer) for site in sight.sites]
    mixers = [_encode_mixer(site, packer) for site in sight.mixers]
    recorded = sight.activations
    activations = {name: [packer.add(x) for x in recorded.calls(name)] for name in recorded}
    tensors = packer.tensors()
    header: dict[str, Any] = {
        "sight": sites, "mixers": mixers, "activations": activations, "version": VERSION,
        "skipped": sight.skipped, "unmatched": sight.unmatched, "aliases": sight.aliases,
        "activation_aliases": sight.activations.aliases,
    }  # fmt: skip
    header["checksum"] = _checksum(header, tensors)
    return write_with_header(tensors, header, file_in(path, FILE_NAME))


def load_sight(path: str | Path) -> Sight:
    """Load a sight that `Sight.save` wrote; the model is not needed.

    >>> import tempfile
    >>> sight = rg.Sight([rg.make_site(*torch.zeros(2, 3, 2))])
    >>> rg.load_sight(sight.save(tempfile.mkdtemp()))
    Sight of 1 attention
      attention: self, 1 head, 3 queries, 3 keys
    """
    file = Path(path) if Path(path).is_file() else file_in(path, FILE_NAME)
    text, tensors = read_safetensors(file, "sight.save")
    header = _parse_header(text, tensors, file)
    try:
        sites = [_decode_site(entry, tensors) for entry in header["sight"]]
        mixers = [_decode_mixer(entry, tensors) for entry in header.get("mixers", [])]
        sight = Sight(sites, dict(header["skipped"]), list(header["unmatched"]), mixers)
        sight.aliases.update(header.get("aliases", {}))  # not in older files
        sight.activations.aliases.update(header.get("activation_aliases", {}))
        for name, refs in header.get("activations", {}).items():
            for ref in refs:
                sight.activations.append(name, TensorPacker.get(ref, tensors))
        return sight
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise FileError(
            f"{file}: needs sites as `save_sight` writes them, got {error!r}"
        ) from error


def _encode_site(site: Site, packer: TensorPacker) -> dict[str, Any]:
    if site.terms.score is not None:
        raise LookError(
            f"{site.name}: needs dot-product scores to be saved, got a custom score function; "
            "try Sight([site for site in sight if site.terms.score is None])"
        )
    entry: dict[str, Any] = {name: getattr(site, name) for name in TEXT_FIELDS}
    entry |= {name: packer.add(getattr(site, name)) for name in TENSOR_FIELDS}
    try:
        terms = vars(site.terms).items()
        entry["terms"] = {name: term_to_dict(value, packer.add) for name, value in terms}
    except ConfigError as error:
        raise LookError(
            f"{site.name}: needs registered masks and biases to be saved, got others: {error}"
        ) from error
    entry["patches"] = [list(grid) for grid in site.patches]
    if site.recorded_survey is not None:
        survey = vars(site.recorded_survey).items()
        entry["recorded_survey"] = {name: packer.add(x) for name, x in survey if x is not None}
    return entry


def _encode_mixer(site: MixerSite, packer: TensorPacker) -> dict[str, Any]:
    """A site with its tensors as references; they have keys that no plain value has."""

    def pack(owner: Any) -> dict[str, Any]:
        values = {f.name: getattr(owner, f.name) for f in fields(owner)}
        return {n: packer.add(x) if isinstance(x, Tensor) else x for n, x in values.items()}

    kind = "convolution" if isinstance(site.mixer, ShortConvolution) else "linear"
    return pack(site) | {"mixer": pack(site.mixer), "kind": kind}


def _decode_mixer(entry: dict[str, Any], tensors: Mapping[str, Tensor]) -> MixerSite:
    def unpack(values: dict[str, Any]) -> dict[str, Any]:
        get = TensorPacker.get
        return {n: get(x, tensors) if isinstance(x, dict) else x for n, x in values.items()}

    make, kind = MIXERS[entry["kind"]]
    values = {name: x for name, x in entry.items() if name not in ("kind", "mixer")}
    site = kind(**unpack(values), mixer=make(**unpack(entry["mixer"])))
    if site.offset + site.queries != site.keys or site.out.shape[0] != site.batch:
        raise ValueError(f"{site.name!r} with shapes that do not match")
    return site


def _parse_header(text: str | None, tensors: Mapping[str, Tensor], file: Path) -> dict[str, Any]:
    try:
        header = parse_json(text or "null")
    except ValueError as error:
        raise FileError(f"{file}: needs JSON in its header, got {error}") from error
    keys = {"sight", "skipped", "version", "checksum"}
    if not isinstance(header, dict) or keys - set(header):
        kind = "a model; try models.load" if text and "config" in text else "another file"
        raise FileError(f"{file}: needs a sight, got {kind}")
    if header["version"] != VERSION:
        raise FileError(
            f"{file}: needs version {VERSION}, got {header['version']}; try another regard"
        )
    got = _checksum(header, tensors)
    if got != header["checksum"]:
        raise FileError(
            f"{file}: needs checksum {header['checksum']}, got {got}: the file is "
            "damaged; try the original"
        )
    return header


def _checksum(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> int:
    """CRC-32 of the header as written and of the tensors."""
    rest = {name: value for name, value in header.items() if name != "checksum"}
    return zlib.crc32(json.dumps(rest, sort_keys=True).encode(), checksum(tensors))


def _decode_site(entry: dict[str, Any], tensors: Mapping[str, Tensor]) -> Site:
    unpack = partial(TensorPacker.get, tensors=tensors)
    values: dict[str, Any] = {name: entry[name] for name in TEXT_FIELDS}
    values |= {name: unpack(entry[name]) for name in TENSOR_FIELDS}
    terms = {name: term_from_dict(value, unpack) for name, value in entry["terms"].items()}
    values["patches"] = tuple(PatchGrid(*grid) for grid in entry.get("patches", ()))
    if "recorded_survey" in entry:
        survey = {name: unpack(ref) for name, ref in entry["recorded_survey"].items()}
        values["recorded_survey"] = Survey(**survey)
    return _check_shapes(Site(**values, terms=Terms(**terms)))


def _check_shapes(site: Site) -> Site:
    """The site, if its tensors and tokens have matching shapes."""
    batch, heads, queries, _ = site.q.shape
    keys, value = site.k.shape[2], site.v.shape[3]
    fits = site.v.shape[:3] == site.k.shape[:3] and site.k.shape[0] == batch
    fits = fits and site.k.shape[1] and heads % site.k.shape[1] == 0
    fits = fits and site.out.shape == (batch, heads, queries, value)
    fits = fits and site.lse.shape == (batch, heads, queries)
    for tokens, count in ((site.query_tokens, queries), (site.key_tokens, keys)):
        rows = [] if tokens is None else tokens
        fits = fits and (not rows or len(rows) == batch) and all(len(r) == count for r in rows)
    if queries and keys:  # terms of other types or shapes fail here, not where they are used
        site.terms.score_tile(site.q, site.k, range(1), range(min(keys, 2)))
    fits = fits and site.terms.score is None and isinstance(site.name, str)
    if not (fits and site.kind in ("self", "cross")):
        raise ValueError(f"{site.name!r} with shapes that do not match")
    return site
