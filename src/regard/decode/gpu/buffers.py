"""Static buffers that a captured step reads and writes."""

from typing import Any

import torch
from torch import Tensor

from regard.decode.cache import KVStorage
from regard.models import LanguageModel
from regard.ops import frequencies, sinusoidal

MIN_CAPACITY = 256  # steps of the smallest cache
MAX_SPLIT_K = 64  # slices of the inputs of a matrix product


class StepBuffers:
    """Everything a step reads and writes, at fixed addresses for CUDA graphs."""

    def __init__(self, model: LanguageModel, rows: int, capacity: int, vocab_blocks: int):
        config, table = model.config, model.embedding.token_embeddings
        dtype, int32 = table.dtype, torch.int32
        kv_heads, head_dim = config.resolved_kv_heads, config.resolved_head_dim

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=table.device)

        capacity = max(MIN_CAPACITY, 1 << (capacity - 1).bit_length())
        self.rows, self.capacity = rows, capacity
        cache = (rows, 2 * kv_heads, capacity, head_dim)
        self.storage = KVStorage([zeros(*cache, dtype=dtype) for _ in range(config.layers)])
        self.token = zeros(rows, dtype=torch.int64)
        self.lengths = zeros(rows, dtype=int32)  # keys per row
        self.left_padding = zeros(rows, dtype=int32)
        self.cache_rows = zeros(rows, capacity, dtype=int32)  # cache row of each past step
        self.use_cache_rows = False
        self.start_lengths = zeros(rows, dtype=int32)  # lengths when generation began
        self.ended, self.end = zeros(rows, dtype=int32), zeros(1, dtype=torch.int64)
        self.suppress_mask = zeros(config.vocab, dtype=torch.int8)  # excluded tokens
        self.uniforms = zeros(rows, capacity, dtype=torch.float64)
        self.output_tokens = zeros(rows, capacity, dtype=torch.int64)
        self.log_probs, self.end_flags = zeros(rows, capacity), zeros(rows, capacity, dtype=int32)
        self.scratch = {
            # a single row is fixed-point: many programs add to it, in any order
            "x": zeros(rows, config.dim, dtype=torch.float32 if rows > 1 else torch.int64),
            "overflow": zeros(1, dtype=int32),
            "normed_x": zeros(rows, config.dim, dtype=dtype),
            "qkv": zeros(rows, (config.heads + 2 * kv_heads) * head_dim, dtype=dtype),
            "attention_out": zeros(rows, config.heads * head_dim, dtype=dtype),
            "ffn_hidden": zeros(rows, config.resolved_ffn_dim, dtype=dtype),
            "split_k_sums": zeros(MAX_SPLIT_K, rows, config.dim) if rows > 1 else zeros(1),
            "logits": zeros(rows, config.vocab),
            "block_max": zeros(rows, vocab_blocks),
            "block_argmax": zeros(rows, vocab_blocks, dtype=int32),
            "block_logsumexp": zeros(rows, vocab_blocks),
            **_position_tables(model, capacity),
        }
        self.graphs: dict[Any, Any] = {}


def _position_tables(model: LanguageModel, capacity: int) -> dict[str, Tensor]:
    """Position codes and rotary angles, computed once."""
    config, codes = model.config, model.embedding.position_embeddings
    table, tables = model.embedding.token_embeddings, dict[str, Tensor]()
    positions = torch.arange(capacity, device=table.device)
    if codes is not None:
        tables["position_table"] = codes.detach()
    elif config.positions == "sinusoidal":
        tables["position_table"] = sinusoidal(positions, config.dim).to(table.dtype)
    if config.rope_theta is not None:
        scaling, head_dim = config.rope_scaling, config.resolved_head_dim
        rates = frequencies(head_dim, config.rope_theta, table.device, scaling)
        angles, amplitude = positions[:, None] * rates, scaling.amplitude if scaling else 1.0
        turns = {"cos": angles.cos(), "sin": angles.sin()}
        tables |= {name: (amplitude * turn).float() for name, turn in turns.items()}
    return tables
