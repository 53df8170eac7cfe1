"""Launches the kernels of one step of a language model, with their tile sizes."""

from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any, cast
from weakref import ref

import torch
from torch import Tensor, nn

from regard.decode.gpu.buffers import MAX_SPLIT_K, StepBuffers
from regard.models import LanguageModel
from regard.nn import EncoderBlock, Norm


@dataclass(frozen=True)
class Tuning:
    """Tile sizes and launch options, tuned on an H200 by benchmarks/decode_gpu.py."""

    pdl: bool = True  # programmatic dependent launch: weights load before the previous kernel ends
    batch_pdl: bool = True  # the same for more than one row
    mma_warps: int = 8  # of a single-row product on tensor cores; 0: without
    mma_tile: int = 16384  # weights per program
    mma_logits_tile: int = 32768  # same for the readout
    tile: int = 8192  # same without tensor cores
    warps: int = 4
    lane_bytes: int = 512  # bytes of a row per warp and load
    logits_tile: int = 16384
    max_fused_keys: int = 1024  # capacity up to which attention includes the output projection
    out_splits: int = 4  # of the outputs of that projection
    batch_outs: int = 32  # outputs per program of `batch_matmul`
    batch_depth: int = 128  # inputs per iteration
    batch_stages: int = 4
    min_programs: int = 64  # below it, inputs are split too (split-K)
    batch_logits_outs: int = 64
    weights_in_registers: bool = True  # 16-bit weights of a batch are loaded before the wait
    register_outs: int = 32  # outputs per such program
    register_warps: int = 8
    register_depth: int = 128  # inputs per warp, at most
    register_maxnreg: int | None = 128
    keys: int = 128  # keys per iteration of attention, one row
    keys_warps: int = 8
    batch_keys: int = 64  # same for several rows
    batch_keys_warps: int = 4
    batch_keys_maxnreg: int | None = 128  # registers per thread, at most
    steps_per_graph: int = 8  # steps per CUDA graph

    def plan_matmul(
        self, outs: int, ins: int, job: str, maps: int, exact: bool
    ) -> tuple[str, int, int, dict[str, Any]]:
        """Kernel of a batched product, outputs and inputs per program, launch options.

        >>> Tuning().plan_matmul(1024, 4096, "SPLIT_K", maps=1, exact=False)[:3]
        ('batch_matmul_registers', 32, 1024)
        """
        plan = None if exact or job == "LOGITS" else self._plan_registers(outs, ins, job, maps)
        if plan is not None:
            return plan
        rows = self.batch_logits_outs if job == "LOGITS" else self.batch_outs
        depth = min(self.batch_depth, next_power_of_2(ins))
        deep = -(-ins // depth) * depth
        if job == "SPLIT_K":
            deep = self._slice(outs, rows, ins, next_power_of_2(deep), depth)
        settings = {"DEPTH": depth, "SLICE": deep, "STAGES": 2 if exact else self.batch_stages}
        settings |= {"PRECISION": "ieee" if exact else "tf32", "num_warps": 4}
        return "batch_matmul", rows, deep, settings

    def _plan_registers(
        self, outs: int, ins: int, job: str, maps: int
    ) -> tuple[str, int, int, dict[str, Any]] | None:
        parts, rows, warps = job == "SPLIT_K", self.register_outs, self.register_warps
        deep = warps * max(32, min(self.register_depth, next_power_of_2(-(-ins // warps))))
        if parts:
            deep = self._slice(outs, rows, ins, deep, 32 * warps)
        if not self.weights_in_registers or not (parts or deep >= ins):
            return None
        settings = {"DEEP": deep // warps, "SPLIT": warps, "maxnreg": self.register_maxnreg}
        rows = max(8, rows // maps)  # as many weights in all
        return "batch_matmul_registers", rows, deep, settings | {"num_warps": warps}

    def _slice(self, outs: int, rows: int, ins: int, deep: int, least: int) -> int:
        """Inputs per split-K program: halved while there are too few programs."""
        least = max(least, next_power_of_2(-(-ins // MAX_SPLIT_K)))
        while deep > least and -(-outs // rows) * -(-ins // deep) < self.min_programs:
            deep //= 2
        return max(deep, least)


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(0, n - 1).bit_length()


MAX_BATCH_TILE = 64  # batch rows per program
MAX_FIXED_POINT = 2.0**34  # half the range of the fixed-point residual
KV_TILE_BYTES = 1 << 15  # of keys per program and iteration, and as many of values


class _Head:
    """The readout as a linear layer; the embedding table if tied."""

    def __init__(self, model: LanguageModel):
        weight = model.readout.weight
        self.weight = model.embedding.token_embeddings if weight is None else weight
        self.bias = model.readout.bias


Maps = tuple[nn.Linear | _Head, ...]  # linear layers of one product


class StepLauncher:
    """Kernel launches of one model."""

    def __init__(self, model: LanguageModel, tuning: Tuning):
        # weak: the launcher must not keep the model alive
        self._model, self.config, self.tuning = ref(model), model.config, tuning
        self.heads, self.kv_heads = self.config.heads, self.config.resolved_kv_heads
        self.head_dim = self.config.resolved_head_dim
        # increments below this cannot overflow the residual together
        increments = self.config.layers * (self.heads + self.config.resolved_ffn_dim) + 1
        self.max_increment = MAX_FIXED_POINT / increments

    @property
    def model(self) -> LanguageModel:
        model = self._model()
        assert model is not None
        return model

    @cached_property
    def kernels(self) -> Any:
        """All kernels by name; imported late, because Triton may be missing."""
        from regard.decode.gpu import attention_kernels, common_kernels, matmul_kernels

        modules = (common_kernels, attention_kernels, matmul_kernels)
        return SimpleNamespace(**{name: x for m in modules for name, x in vars(m).items()})

    def launch(self, b: StepBuffers) -> None:
        """All kernels of a step, up to the logits."""
        layers = cast(list[EncoderBlock], list(self.model.decoder.blocks))
        launch = self._one if b.rows == 1 else self._some
        launch(b, layers)

    def _one(self, b: StepBuffers, layers: list[EncoderBlock]) -> None:
        work, x = b.scratch, b.scratch["x"]
        self._embed_or_add(b, first=True)
        for n, block in enumerate(layers):
            attention, ff = block.self_attention, block.feed_forward
            self._single_row_matmul(
                b, x, _qkv_layers(block), work["qkv"], "QKV", block.self_residual.norm
            )
            if b.capacity <= self.tuning.max_fused_keys:
                self._attend_and_project(b, n, block)
            else:
                self._attend(b, n, attention.scale)
                self._single_row_matmul(
                    b, work["attention_out"], (attention.to_out,), x, "RESIDUAL"
                )
            norm = block.feed_forward_residual.norm
            self._single_row_matmul(b, x, _up_layers(block), work["ffn_hidden"], "FFN_UP", norm)
            self._single_row_matmul(b, work["ffn_hidden"], (ff.to_out,), x, "RESIDUAL")
        self._single_row_matmul(b, x, (_Head(self.model),), work["logits"], "LOGITS",
                      self.model.decoder.norm, self.model.readout.scale)  # fmt: skip

    def _some(self, b: StepBuffers, layers: list[EncoderBlock]) -> None:
        work, bias, parts = b.scratch, None, 0
        for n, block in enumerate(layers):
            attention, ff = block.self_attention, block.feed_forward
            self._embed_or_add(
                b, first=n == 0, norm=block.self_residual.norm, parts=parts, bias=bias
            )
            self._batch_matmul(b, work["normed_x"], _qkv_layers(block), work["qkv"], "QKV")
            self._attend(b, n, attention.scale)
            out = (attention.to_out,)
            parts = self._batch_matmul(
                b, work["attention_out"], out, work["split_k_sums"], "SPLIT_K"
            )
            norm = block.feed_forward_residual.norm
            self._embed_or_add(b, norm=norm, parts=parts, bias=attention.to_out.bias)
            self._batch_matmul(b, work["normed_x"], _up_layers(block), work["ffn_hidden"], "FFN_UP")
            out = (ff.to_out,)
            parts = self._batch_matmul(b, work["ffn_hidden"], out, work["split_k_sums"], "SPLIT_K")
            bias = ff.to_out.bias
        self._embed_or_add(b, norm=self.model.decoder.norm, parts=parts, bias=bias)
        self._batch_matmul(b, work["normed_x"], (_Head(self.model),), work["logits"], "LOGITS",
                        scale=self.model.readout.scale)  # fmt: skip

    def _embed_or_add(
        self, b: StepBuffers, *, first: bool = False, norm: Norm | None = None, parts: int = 0,
        bias: Tensor | None = None,
    ) -> None:  # fmt: skip
        work, x, dim = b.scratch, b.scratch["x"], self.config.dim
        places, table = work.get("position_table"), self.model.embedding.token_embeddings
        self.kernels.embed_or_add[(b.rows,)](
            b.token, b.lengths, b.left_padding, table, x if places is None else places,
            work["split_k_sums"], x if bias is None else bias, x, work["overflow"],
            work["normed_x"],
            *_norm_parts(norm, x), dim, b.rows, 0.0 if norm is None else norm.eps,
            self.model.embedding.scale, self.max_increment,
            WIDTH=next_power_of_2(dim), FIRST=first, HAS_POSITIONS=places is not None, SPLITS=parts,
            BIASED=bias is not None, **self._norm_kind(norm),
            num_warps=4, **self._pdl_options(b),
        )  # fmt: skip

    def _single_row_matmul(
        self, b: StepBuffers, x: Tensor, maps: Maps, out: Tensor, job: str,
        norm: Norm | None = None, scale: float = 1.0,
    ) -> None:  # fmt: skip
        outs, ins, gated = _sizes(maps, job)
        width, few = next_power_of_2(ins), self.tuning.mma_tile // 16
        if job == "RESIDUAL" and self._split(min(width, few)):
            width = min(width, few)
        split = self._split(width)
        tile = self.tuning.mma_tile if split else self.tuning.tile
        rows = self.logits_block(1) if job == "LOGITS" else max(1, tile // width)
        if job == "QKV":
            rows = _divisor(rows, maps[0].weight.shape[0], maps[1].weight.shape[0])
        split = split if rows % 16 == 0 else 0
        assert split or width >= ins
        weights, biases, ends = _stacked_weights(maps)
        work, lanes = b.scratch, self.tuning.lane_bytes // maps[0].weight.element_size()
        self.kernels.single_row_matmul[(-(-outs // rows), -(-ins // width))](
            x, *weights, *biases, *_norm_parts(norm, x), out,
            work["overflow"], b.suppress_mask, *_block_stats(b),
            *ends, outs, ins, 0.0 if norm is None else norm.eps, scale, self.max_increment,
            ROWS=rows, WIDTH=width, LANES=min(width, lanes), SPLIT=split,
            JOB=getattr(self.kernels, job).value, **self._norm_kind(norm),
            BIASED=maps[0].bias is not None, GATED=gated,
            ACTIVATION=self.kernels.ACTIVATIONS[self.config.activation],
            num_warps=split or self.tuning.warps, **self._pdl_options(b),
        )  # fmt: skip

    def _split(self, ins: int) -> int:
        """Warps over which a single-row product splits its inputs; 0: no tensor cores."""
        cores = self.tuning.mma_warps
        exact = self.model.embedding.token_embeddings.dtype == torch.float32
        few = next_power_of_2(ins) * 16 <= self.tuning.mma_tile  # rows of a program
        return 0 if exact or not cores or not few or next_power_of_2(ins) < 32 * cores else cores

    def _batch_matmul(
        self, b: StepBuffers, x: Tensor, maps: Maps, out: Tensor, job: str,
        scale: float = 1.0,
    ) -> int:  # fmt: skip
        """A batched product; returns the number of split-K slices to sum."""
        outs, ins, gated = _sizes(maps, job)
        batch = max(16, min(MAX_BATCH_TILE, next_power_of_2(b.rows)))
        exact = x.dtype == torch.float32
        name, rows, part, settings = self.tuning.plan_matmul(outs, ins, job, 1 + gated, exact)
        if job == "QKV":
            rows = _divisor(rows, maps[0].weight.shape[0], maps[1].weight.shape[0])
        weights, biases, ends = _stacked_weights(maps)
        slices = -(-ins // part)
        getattr(self.kernels, name)[(-(-outs // rows), slices, -(-b.rows // batch))](
            x, *weights, *biases, out, b.suppress_mask, *_block_stats(b),
            *ends, outs, ins, b.rows, scale,
            BATCH=batch, ROWS=rows, JOB=getattr(self.kernels, job).value,
            BIASED=maps[0].bias is not None and job != "SPLIT_K", GATED=gated,
            ACTIVATION=self.kernels.ACTIVATIONS[self.config.activation],
            **settings, **self._pdl_options(b),
        )  # fmt: skip
        return slices

    def _attend(self, b: StepBuffers, layer: int, scale: float | None) -> None:
        self.kernels.attend_step[(b.rows * self.heads,)](
            b.scratch["qkv"], *self._keys_values(b, layer), b.scratch["attention_out"],
            *self._attention_args(b, layer, scale), **self._attention_options(b),
        )  # fmt: skip

    def _attend_and_project(self, b: StepBuffers, layer: int, block: EncoderBlock) -> None:
        out, dim = block.self_attention.to_out, self.config.dim
        options = self._attention_options(b)
        outs = next_power_of_2(-(-dim // self.tuning.out_splits))
        outs = max(outs, options["GROUPS"] * options["NEAR"])
        self.kernels.attend_and_project[(self.heads, -(-dim // outs))](
            b.scratch["qkv"], *self._keys_values(b, layer),
            out.weight, out.weight if out.bias is None else out.bias,
            b.scratch["x"], b.scratch["overflow"],
            *self._attention_args(b, layer, block.self_attention.scale), dim, self.max_increment,
            OUTS=outs, BIASED=out.bias is not None, **options,
        )  # fmt: skip

    def _keys_values(self, b: StepBuffers, layer: int) -> tuple[Tensor, Tensor]:
        x = b.storage.layers[layer]
        return x[:, : self.kv_heads], x[:, self.kv_heads :]

    def _attention_args(self, b: StepBuffers, layer: int, scale: float | None) -> tuple[Any, ...]:
        work, window = b.scratch, self.config.resolved_window[layer]
        return (
            b.lengths, b.left_padding, b.cache_rows,
            work.get("cos", work["x"]), work.get("sin", work["x"]),
            self.heads, self.kv_heads, b.capacity, self.head_dim**-0.5 if scale is None else scale,
            1 << 30 if window is None else window,
        )  # fmt: skip

    def _attention_options(self, b: StepBuffers) -> dict[str, Any]:
        """Layout of the keys in a program: groups per warp, neighbours, repeats."""
        tuning, width = self.tuning, next_power_of_2(self.head_dim)
        size = b.storage.layers[0].element_size()
        keys, warps, regs = tuning.batch_keys, tuning.batch_keys_warps, tuning.batch_keys_maxnreg
        if b.rows == 1:
            keys, warps, regs = tuning.keys, tuning.keys_warps, None
        while keys * width * size > KV_TILE_BYTES:  # they stay in registers
            keys //= 2
        groups = min(warps, keys)
        near = min(max(1, 512 // (size * width)), keys // groups)
        return {
            "HEAD_DIM": self.head_dim, "WIDTH": width, "GROUPS": groups, "NEAR": near,
            "REPEATS": keys // (groups * near), "ROTARY": self.config.rope_theta is not None,
            "ROTATE_HALF": self.config.rotate_half, "USE_CACHE_ROWS": b.use_cache_rows,
            "num_warps": warps,
            "maxnreg": regs, **self._pdl_options(b),
        }  # fmt: skip

    def logits_block(self, rows: int) -> int:
        """Tokens of the vocabulary per program of the readout."""
        if rows > 1:
            return self.tuning.batch_logits_outs
        tuning = self.tuning
        tile = tuning.mma_logits_tile if self._split(self.config.dim) else tuning.logits_tile
        return max(1, tile // next_power_of_2(self.config.dim))

    def _pdl_options(self, b: StepBuffers) -> dict[str, Any]:
        """Options of programmatic dependent launch, where the GPU has it."""
        has_pdl = b.token.is_cuda and (self.tuning.pdl if b.rows == 1 else self.tuning.batch_pdl)
        if has_pdl and torch.cuda.get_device_capability(b.token.device) >= (9, 0):
            return {"PDL": True, "launch_pdl": True}
        return {"PDL": False}

    def choose_token(self, b: StepBuffers) -> None:
        """Choose the most likely token on the device; the next step starts from it."""
        blocks = b.scratch["block_max"].shape[1]
        self.kernels.argmax_token[(b.rows,)](
            *_block_stats(b), b.token, b.lengths, b.start_lengths, b.ended, b.end,
            b.output_tokens, b.log_probs, b.end_flags, blocks, b.capacity,
            BLOCKS=next_power_of_2(blocks), num_warps=4, **self._pdl_options(b),
        )  # fmt: skip

    def _norm_kind(self, norm: Norm | None) -> dict[str, Any]:
        kind = "none" if norm is None else norm.kind
        shifted = norm is not None and norm.bias is not None
        return {"NORM": self.kernels.NORMS[kind], "SHIFTED": shifted}


def _block_stats(b: StepBuffers) -> tuple[Tensor, Tensor, Tensor]:
    work = b.scratch
    return work["block_max"], work["block_argmax"], work["block_logsumexp"]


def _qkv_layers(block: EncoderBlock) -> Maps:
    attention = block.self_attention
    return attention.to_q, attention.to_k, attention.to_v


def _up_layers(block: EncoderBlock) -> Maps:
    ff = block.feed_forward
    return (ff.to_hidden,) if ff.to_gate is None else (ff.to_hidden, ff.to_gate)


def _sizes(maps: Maps, job: str) -> tuple[int, int, bool]:
    """Outputs and inputs of a product, and whether half of the weights are of a gate."""
    outs, gated = sum(m.weight.shape[0] for m in maps), job == "FFN_UP" and len(maps) == 2
    return outs // (1 + gated), maps[0].weight.shape[1], gated


def _stacked_weights(maps: Maps) -> tuple[list[Tensor], list[Tensor], tuple[int, int]]:
    """Three weights and biases (the first repeated if fewer), and where the first two end."""
    weights = [m.weight for m in maps]
    biases = [m.weight if m.bias is None else m.bias for m in maps]
    ends = (weights[0].shape[0], sum(w.shape[0] for w in weights[:2]))
    fill = 3 - len(maps)
    return weights + weights[:1] * fill, biases + biases[:1] * fill, ends


def _norm_parts(norm: Norm | None, x: Tensor) -> tuple[Tensor, Tensor]:
    gain, shift = (None, None) if norm is None else (norm.gain, norm.bias)
    return x if gain is None else gain, x if shift is None else shift


def _divisor(most: int, *sizes: int) -> int:
    """The largest power of two up to `most` that divides all sizes: no block spans two."""
    while any(size % most for size in sizes):
        most //= 2
    return most
