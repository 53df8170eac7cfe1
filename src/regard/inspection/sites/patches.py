"""Where the patches of pictures, and the times of sound, are among the keys of a site."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from math import isqrt
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from regard.inspection.sites.site import PatchGrid, Site

TOWER = re.compile(r"(^|\.)(vision|visual|image)")
MAX_PREFIX = 16  # class and register tokens before the patches
FRAME_SECONDS = 0.02  # of a position of Whisper's encoder: two steps of 10 ms


def place_patches(grid: PatchGrid, weights: Float[Tensor, "*batch key"]) -> Tensor:
    """The weights of the keys that are patches, as a picture: (…, row, column).

    >>> place_patches(PatchGrid(1, 2, 2), torch.arange(5.0)).tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    """
    patches = weights[..., grid.first : grid.stop]
    # towers of Qwen-VL read squares of merge × merge patches one after another
    order = "... (r c a b) -> ... (r a) (c b)"
    m = grid.merge
    return rearrange(patches, order, r=grid.rows // m, c=grid.columns // m, a=m, b=m)


def describe_keys(
    model: nn.Module, calls: Mapping[str, tuple[tuple, dict[str, Any]]], sites: Sequence[Site]
) -> list[Site]:
    """The sites with what is known of their keys from the first call of the model."""
    config = getattr(model, "config", None)
    if getattr(config, "model_type", None) == "whisper":
        return [_with_times(site) for site in sites]
    args, kwargs = calls.get("", ((), {}))
    tensors = [x for x in (kwargs.get("pixel_values"), *args) if isinstance(x, Tensor)]
    pixels = next((x for x in tensors if x.is_floating_point() and x.ndim in (4, 5)), None)
    sizes = kwargs.get("image_grid_thw")
    if config is None or (pixels is None and sizes is None):
        return list(sites)
    vision = getattr(config, "vision_config", None)
    frames = None if sizes is None else [tuple(map(int, row)) for row in sizes]
    ids = next((x for x in (kwargs.get("input_ids"), *args) if is_ids(x)), None)
    result = []
    for site in sites:
        if vision is None or TOWER.search(site.path):
            grids = _of_tower(site, vision or config, pixels, frames)
        else:
            grids = _of_text(site, config, ids, pixels, frames)
        result.append(replace(site, patches=tuple(grids)) if grids else site)
    return result


def _of_tower(site: Site, config: Any, pixels: Any, frames: Any) -> list[PatchGrid]:
    """Of a vision encoder: one picture or crop per sequence, or all in one."""
    if frames is not None:  # packed: together, or a call for each frame
        merge = getattr(config, "spatial_merge_size", 1)
        each = [(n, h, w) for n, (t, h, w) in enumerate(frames) for _ in range(t)]
        n, h, w = each[site.call % len(each)]
        if site.keys == h * w:
            return [PatchGrid(0, h, w, 0, n, merge)]
        starts = [sum(h * w for _, h, w in each[:i]) for i in range(len(each) + 1)]
        if site.keys != starts[-1]:
            return []
        return [PatchGrid(at, h, w, 0, n, merge) for at, (n, h, w) in zip(starts, each)]  # noqa: B905
    size = getattr(config, "patch_size", None)
    height, width = size if isinstance(size, tuple | list) else (size, size)
    if not isinstance(height, int) or not isinstance(width, int):
        return []
    rows, columns = pixels.shape[-2] // height, pixels.shape[-1] // width
    prefix = site.keys - rows * columns
    if not 0 <= prefix <= MAX_PREFIX:
        return []
    return [PatchGrid(prefix, rows, columns, n, n) for n in range(site.batch)]


def _of_text(site: Site, config: Any, ids: Any, pixels: Any, frames: Any) -> list[PatchGrid]:
    """Of a language model: runs of image tokens in its input."""
    token = image_token(config)
    if ids is None or token is None or site.kind != "self" or site.keys < ids.shape[1]:
        return []
    runs = list(_runs((ids == token).tolist()))
    if frames is not None:
        merge = config.vision_config.spatial_merge_size
        shapes = [(h // merge, w // merge) for t, h, w in frames for _ in range(t)]
    else:
        total = sum(count for _, _, count in runs)
        pictures = pixels.shape[:-3].numel()
        side = isqrt(total // pictures)
        shapes = [(side, side)] * pictures if side and side**2 * pictures == total else []
    grids, shapes = [], iter(enumerate(shapes))
    for batch, at, count in runs:
        while count > 0 and (shape := next(shapes, None)) is not None:
            picture, (rows, columns) = shape
            grids.append(PatchGrid(at, rows, columns, batch, picture))
            at, count = at + rows * columns, count - rows * columns
        if count:  # tokens that are no patches, such as ends of rows
            return []
    return grids


def _runs(rows: Sequence[Sequence[bool]]) -> Iterator[tuple[int, int, int]]:
    """Row, start and length of each run."""
    for n, row in enumerate(rows):
        for is_image, run in groupby(enumerate(row), key=lambda pair: pair[1]):
            places = [i for i, _ in run]
            if is_image:
                yield n, places[0], len(places)


def _with_times(site: Site) -> Site:
    """Whisper: the time of each frame of sound as its label."""
    in_encoder = re.search(r"(^|\.)decoder\.", site.path) is None
    if site.key_tokens is not None or not (site.kind == "cross" or in_encoder):
        return site
    times = [[f"{FRAME_SECONDS * i:.2f} s" for i in range(site.keys)]] * site.batch
    return replace(site, key_tokens=times, **({"query_tokens": times} if in_encoder else {}))


def image_token(config: Any) -> int | None:
    """The token that stands for a patch in the input of an image-text model."""
    return getattr(config, "image_token_id", getattr(config, "image_token_index", None))


def is_ids(x: Any) -> bool:
    """Whether an argument of a model may be token ids, (batch, time)."""
    is_matrix = isinstance(x, Tensor) and x.ndim == 2
    return is_matrix and not x.is_floating_point() and x.dtype != torch.bool
