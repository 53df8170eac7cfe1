"""Static buffers that a captured step reads and writes."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from regard.models import LanguageModel
from regard.ops import frequencies, sinusoidal

MIN_CAPACITY = 256  # steps of the smallest cache
MAX_SPLIT_K = 64  # slices of the inputs of a matrix product


@dataclass
class StepBuffers:
    """Everything a step reads and writes, at fixed addresses for CUDA graphs."""

    rows: int
    capacity: int
    keys: Tensor  # (layer, row, kv_head, capacity, head_dim)
    values: Tensor
    token: Tensor
    lengths: Tensor  # keys per row
    left_padding: Tensor  # per row
    cache_rows: Tensor  # (row, capacity): cache row that holds each past step
    start_lengths: Tensor  # lengths when generation began
    ended: Tensor
    end: Tensor
    suppress_mask: Tensor  # excluded tokens
    uniforms: Tensor
    output_tokens: Tensor  # (row, capacity), like the next two
    log_probs: Tensor
    end_flags: Tensor
    scratch: dict[str, Tensor]
    length: int = 0
    use_cache_rows: bool = False
    graphs: dict[Any, Any] = field(default_factory=dict)


def make_buffers(model: LanguageModel, rows: int, capacity: int, vocab_blocks: int) -> StepBuffers:
    """Buffers for this many rows and at least `capacity` keys.

    >>> model = rg.models.LanguageModel(rg.models.language_tiny(vocab=9))
    >>> make_buffers(model, rows=3, capacity=300, vocab_blocks=1).keys.shape
    torch.Size([2, 3, 4, 512, 16])
    """
    config, table = model.config, model.embedding.token_embeddings
    device, dtype = table.device, table.dtype
    capacity = max(MIN_CAPACITY, 1 << (capacity - 1).bit_length())
    kv_heads, feat = config.resolved_kv_heads, config.resolved_head_dim

    def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    cache, int32 = (config.layers, rows, kv_heads, capacity, feat), {"dtype": torch.int32}
    work = {
        # a single row is fixed-point: many programs add to it, in any order
        "x": zeros(rows, config.dim, dtype=torch.float32 if rows > 1 else torch.int64),
        "overflow": zeros(1, **int32),
        "normed_x": zeros(rows, config.dim, dtype=dtype),
        "qkv": zeros(rows, (config.heads + 2 * kv_heads) * feat, dtype=dtype),
        "attention_out": zeros(rows, config.heads * feat, dtype=dtype),
        "ffn_hidden": zeros(rows, config.resolved_ffn_dim, dtype=dtype),
        "split_k_sums": zeros(MAX_SPLIT_K, rows, config.dim) if rows > 1 else zeros(1),
        "logits": zeros(rows, config.vocab),
        "block_max": zeros(rows, vocab_blocks),
        "block_argmax": zeros(rows, vocab_blocks, **int32),
        "block_logsumexp": zeros(rows, vocab_blocks),
        **_position_tables(model, capacity),
    }
    return StepBuffers(
        rows=rows,
        capacity=capacity,
        keys=zeros(*cache, dtype=dtype),
        values=zeros(*cache, dtype=dtype),
        token=zeros(rows, dtype=torch.int64),
        lengths=zeros(rows, **int32),
        left_padding=zeros(rows, **int32),
        cache_rows=zeros(rows, capacity, **int32),
        start_lengths=zeros(rows, **int32),
        ended=zeros(rows, **int32),
        end=zeros(1, dtype=torch.int64),
        suppress_mask=zeros(config.vocab, dtype=torch.int8),
        uniforms=zeros(rows, capacity, dtype=torch.float64),
        output_tokens=zeros(rows, capacity, dtype=torch.int64),
        log_probs=zeros(rows, capacity),
        end_flags=zeros(rows, capacity, **int32),
        scratch=work,
    )


def _position_tables(model: LanguageModel, capacity: int) -> dict[str, Tensor]:
    """Position codes and rotary angles, computed once."""
    config, embedding = model.config, model.embedding
    device, tables = embedding.token_embeddings.device, {}
    positions = torch.arange(capacity, device=device)
    if embedding.position_embeddings is not None:
        tables["position_table"] = embedding.position_embeddings.detach()
    elif config.positions == "sinusoidal":
        tables["position_table"] = sinusoidal(positions, config.dim).to(
            embedding.token_embeddings.dtype
        )
    if config.rope_theta is not None:
        angles = positions[:, None] * frequencies(
            config.resolved_head_dim, config.rope_theta, device
        )
        tables |= {"cos": angles.cos().float(), "sin": angles.sin().float()}
    return tables
