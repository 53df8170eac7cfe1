"""What a captured step reads and writes: static shapes, static places."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from regard.models import LanguageModel
from regard.ops import frequencies, sinusoidal

MIN_CAPACITY = 256  # places that a cache has at least
MAX_SPLIT_K = 64  # slices that the inputs of a product are cut into


@dataclass
class StepBuffers:
    """All that a step reads and writes; nothing in it ever moves, so that a graph can name it."""

    rows: int
    capacity: int
    keys: Tensor  # (layer, row, head, capacity, feat)
    values: Tensor
    token: Tensor
    lengths: Tensor  # how many keys each row holds
    left_padding: Tensor  # how many places at the left of a row hold nothing
    cache_rows: Tensor  # (row, capacity): the row of the cache where each past step was written
    start_lengths: Tensor  # the time that writing began at
    ended: Tensor
    end: Tensor
    suppress_mask: Tensor  # tokens that may not be chosen
    uniforms: Tensor
    output_tokens: (
        Tensor  # (row, capacity): what was written, how likely it was, whether the row had ended
    )
    log_probs: Tensor
    end_flags: Tensor
    scratch: dict[str, Tensor]
    length: int = 0
    use_cache_rows: bool = False
    graphs: dict[Any, Any] = field(default_factory=dict)


def make_buffers(model: LanguageModel, rows: int, capacity: int, vocab_blocks: int) -> StepBuffers:
    """Buffers for so many rows and keys at least; the vocabulary is scored in so many blocks.

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=9))
    >>> make_buffers(model, rows=3, capacity=300, vocab_blocks=1).keys.shape  # layer, row, head, capacity, feat
    torch.Size([2, 3, 4, 512, 16])
    """
    config, table = model.config, model.embedding.token_embeddings
    device, dtype = table.device, table.dtype
    capacity = max(MIN_CAPACITY, 1 << (capacity - 1).bit_length())
    kv_heads, feat = config.resolved_kv_heads, config.resolved_head_dim

    def made(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    cache, whole = (config.layers, rows, kv_heads, capacity, feat), {"dtype": torch.int32}
    work = {
        # of a single row as whole numbers, which many programs add to
        "x": made(rows, config.dim, dtype=torch.float32 if rows > 1 else torch.int64),
        "overflow": made(1, **whole),
        "normed_x": made(rows, config.dim, dtype=dtype),
        "qkv": made(rows, (config.heads + 2 * kv_heads) * feat, dtype=dtype),
        "attention_out": made(rows, config.heads * feat, dtype=dtype),
        "ffn_hidden": made(rows, config.resolved_ffn_dim, dtype=dtype),
        "split_k_sums": made(MAX_SPLIT_K, rows, config.dim) if rows > 1 else made(1),
        "logits": made(rows, config.vocab),
        "block_max": made(rows, vocab_blocks),
        "block_argmax": made(rows, vocab_blocks, **whole),
        "block_logsumexp": made(rows, vocab_blocks),
        **_places(model, capacity),
    }
    return StepBuffers(
        rows=rows,
        capacity=capacity,
        keys=made(*cache, dtype=dtype),
        values=made(*cache, dtype=dtype),
        token=made(rows, dtype=torch.int64),
        lengths=made(rows, **whole),
        left_padding=made(rows, **whole),
        cache_rows=made(rows, capacity, **whole),
        start_lengths=made(rows, **whole),
        ended=made(rows, **whole),
        end=made(1, dtype=torch.int64),
        suppress_mask=made(config.vocab, dtype=torch.int8),
        uniforms=made(rows, capacity, dtype=torch.float64),
        output_tokens=made(rows, capacity, dtype=torch.int64),
        log_probs=made(rows, capacity),
        end_flags=made(rows, capacity, **whole),
        scratch=work,
    )


def _places(model: LanguageModel, capacity: int) -> dict[str, Tensor]:
    """Codes of positions and angles of rotary ones, made once."""
    config, embedding = model.config, model.embedding
    device, made = embedding.token_embeddings.device, {}
    places = torch.arange(capacity, device=device)
    if embedding.position_embeddings is not None:
        made["position_table"] = embedding.position_embeddings.detach()
    elif config.positions == "sinusoidal":
        made["position_table"] = sinusoidal(places, config.dim).to(embedding.token_embeddings.dtype)
    if config.rope_theta is not None:
        angles = places[:, None] * frequencies(config.resolved_head_dim, config.rope_theta, device)
        made |= {"cos": angles.cos().float(), "sin": angles.sin().float()}
    return made
