"""What a captured step reads and writes: static shapes, static places."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from regard.models import LanguageModel
from regard.ops import frequencies, sinusoidal

ROOM = 256  # places that a cache has at least
MOST_PARTS = 64  # slices that the inputs of a product are cut into


@dataclass
class Buffers:
    """All that a step reads and writes; nothing in it ever moves, so that a graph can name it."""

    rows: int
    room: int
    keys: Tensor  # (layer, row, head, room, feat)
    values: Tensor
    token: Tensor
    time: Tensor  # how many keys each row holds
    skip: Tensor  # how many places at the left of a row hold nothing
    home: Tensor  # (row, room): the row of the cache where each past step was written
    base: Tensor  # the time that writing began at
    ended: Tensor
    end: Tensor
    barred: Tensor  # tokens that may not be chosen
    luck: Tensor
    tokens: Tensor  # (row, room): what was written, how likely it was, whether the row had ended
    chances: Tensor
    ends: Tensor
    work: dict[str, Tensor]
    filled: int = 0
    moved: bool = False
    graphs: dict[Any, Any] = field(default_factory=dict)


def make_buffers(model: LanguageModel, rows: int, room: int, blocks: int) -> Buffers:
    """Buffers for so many rows and keys at least; the vocabulary is scored in so many blocks.

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=9))
    >>> make_buffers(model, rows=3, room=300, blocks=1).keys.shape  # layer, row, head, room, feat
    torch.Size([2, 3, 4, 512, 16])
    """
    config, table = model.config, model.embedding.table
    device, dtype = table.device, table.dtype
    room = max(ROOM, 1 << (room - 1).bit_length())
    key_heads, feat = config.keyed_heads, config.head_feat

    def made(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    cache, whole = (config.layers, rows, key_heads, room, feat), {"dtype": torch.int32}
    work = {
        # of a single row as whole numbers, which many programs add to
        "x": made(rows, config.dim, dtype=torch.float32 if rows > 1 else torch.int64),
        "wrong": made(1, **whole),
        "normed": made(rows, config.dim, dtype=dtype),
        "qkv": made(rows, (config.heads + 2 * key_heads) * feat, dtype=dtype),
        "y": made(rows, config.heads * feat, dtype=dtype),
        "hidden": made(rows, config.hidden_feat, dtype=dtype),
        "parts": made(MOST_PARTS, rows, config.dim) if rows > 1 else made(1),
        "logits": made(rows, config.vocab),
        "best": made(rows, blocks),
        "where": made(rows, blocks, **whole),
        "sums": made(rows, blocks),
        **_places(model, room),
    }
    return Buffers(
        rows=rows,
        room=room,
        keys=made(*cache, dtype=dtype),
        values=made(*cache, dtype=dtype),
        token=made(rows, dtype=torch.int64),
        time=made(rows, **whole),
        skip=made(rows, **whole),
        home=made(rows, room, **whole),
        base=made(rows, **whole),
        ended=made(rows, **whole),
        end=made(1, dtype=torch.int64),
        barred=made(config.vocab, dtype=torch.int8),
        luck=made(rows, room, dtype=torch.float64),
        tokens=made(rows, room, dtype=torch.int64),
        chances=made(rows, room),
        ends=made(rows, room, **whole),
        work=work,
    )


def _places(model: LanguageModel, room: int) -> dict[str, Tensor]:
    """Codes of positions and angles of rotary ones, made once."""
    config, embedding = model.config, model.embedding
    device, made = embedding.table.device, {}
    places = torch.arange(room, device=device)
    if embedding.places is not None:
        made["places"] = embedding.places.detach()
    elif config.positions == "sinusoidal":
        made["places"] = sinusoidal(places, config.dim).to(embedding.table.dtype)
    if config.rotary is not None:
        angles = places[:, None] * frequencies(config.head_feat, config.rotary, device)
        made |= {"cos": angles.cos().float(), "sin": angles.sin().float()}
    return made
