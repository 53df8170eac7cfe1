"""The kernels of one step of a language model, in their order, with what each is told."""

from functools import cached_property
from typing import Any, cast
from weakref import ref

import torch
from torch import Tensor

from regard.decode.gpu.buffers import StepBuffers
from regard.decode.gpu.tuning import Tuning, next_power_of_2
from regard.models import LanguageModel
from regard.nn import EncoderBlock, Norm

MAX_BATCH_TILE = 64  # rows of a batch that one program takes at once
MAX_FIXED_POINT = 2.0**34  # units that a residual in whole numbers holds, by half
KV_TILE_BYTES = 1 << 15  # bytes of keys that a program takes at once, and as many of values


class StepLauncher:
    """All kernels of a step for one model."""

    def __init__(self, model: LanguageModel, tuning: Tuning):
        self._model, self.config, self.tuning = ref(model), model.config, tuning
        self.heads = self.config.heads
        self.kv_heads = self.config.resolved_kv_heads
        self.head_dim = self.config.resolved_head_dim
        self.ffn_dim = self.config.resolved_ffn_dim
        # parts that small cannot leave the range together, however many there are
        self.max_increment = MAX_FIXED_POINT / (
            self.config.layers * (self.heads + self.ffn_dim) + 1
        )

    @property
    def model(self) -> LanguageModel:
        model = self._model()
        assert model is not None
        return model

    @cached_property
    def common_kernels(self) -> Any:
        from regard.decode.gpu import common_kernels

        return common_kernels

    @cached_property
    def single_row_kernels(self) -> Any:
        from regard.decode.gpu import single_row_kernels

        return single_row_kernels

    @cached_property
    def batch_kernels(self) -> Any:
        from regard.decode.gpu import batch_kernels

        return batch_kernels

    @cached_property
    def attention_kernels(self) -> Any:
        from regard.decode.gpu import attention_kernels

        return attention_kernels

    def launch(self, b: StepBuffers) -> None:
        """All kernels of a step, up to the logits."""
        layers = cast(list[EncoderBlock], list(self.model.decoder.blocks))
        if b.rows == 1:
            self._one(b, layers)
        else:
            self._some(b, layers)

    def _one(self, b: StepBuffers, layers: list[EncoderBlock]) -> None:
        work, x = b.scratch, b.scratch["x"]
        self._enter(b, first=True)
        for n, block in enumerate(layers):
            own, ff = block.self_attention, block.feed_forward
            self._one_row(b, x, _qkv(block), work["qkv"], "QKV", block.self_residual.norm)
            if b.capacity <= self.tuning.max_fused_keys:
                self._attend_out(b, n, block)
            else:
                self._attend(b, n, own.scale)
                self._one_row(b, work["attention_out"], (own.to_out,), x, "RESIDUAL")
            norm = block.feed_forward_residual.norm
            self._one_row(b, x, _up(block), work["ffn_hidden"], "FFN_UP", norm)
            self._one_row(b, work["ffn_hidden"], (ff.to_out,), x, "RESIDUAL")
        self._one_row(b, x, (_Head(self.model),), work["logits"], "LOGITS",
                      self.model.decoder.norm, self.model.readout.scale)  # fmt: skip

    def _some(self, b: StepBuffers, layers: list[EncoderBlock]) -> None:
        work, bias, parts = b.scratch, None, 0
        for n, block in enumerate(layers):
            own, ff = block.self_attention, block.feed_forward
            self._enter(b, first=n == 0, norm=block.self_residual.norm, parts=parts, bias=bias)
            self._some_rows(b, work["normed_x"], _qkv(block), work["qkv"], "QKV")
            self._attend(b, n, own.scale)
            out = (own.to_out,)
            parts = self._some_rows(b, work["attention_out"], out, work["split_k_sums"], "SPLIT_K")
            norm = block.feed_forward_residual.norm
            self._enter(b, norm=norm, parts=parts, bias=own.to_out.bias)
            self._some_rows(b, work["normed_x"], _up(block), work["ffn_hidden"], "FFN_UP")
            out = (ff.to_out,)
            parts = self._some_rows(b, work["ffn_hidden"], out, work["split_k_sums"], "SPLIT_K")
            bias = ff.to_out.bias
        self._enter(b, norm=self.model.decoder.norm, parts=parts, bias=bias)
        self._some_rows(b, work["normed_x"], (_Head(self.model),), work["logits"], "LOGITS",
                        scale=self.model.readout.scale)  # fmt: skip

    def _enter(
        self, b: StepBuffers, *, first: bool = False, norm: Norm | None = None, parts: int = 0,
        bias: Tensor | None = None,
    ) -> None:  # fmt: skip
        work, x, dim = b.scratch, b.scratch["x"], self.config.dim
        places, table = work.get("position_table"), self.model.embedding.token_embeddings
        self.common_kernels.embed_or_add[(b.rows,)](
            b.token, b.lengths, b.left_padding, table, x if places is None else places,
            work["split_k_sums"], x if bias is None else bias, x, work["overflow"], work["normed_x"],
            *_norm_parts(norm, x), dim, b.rows, 0.0 if norm is None else norm.eps,
            self.model.embedding.scale, self.max_increment,
            WIDTH=next_power_of_2(dim), FIRST=first, HAS_POSITIONS=places is not None, SPLITS=parts,
            BIASED=bias is not None, **self._norm_kind(norm),
            num_warps=4, **self._launching(b),
        )  # fmt: skip

    def _one_row(
        self, b: StepBuffers, x: Tensor, maps: tuple[Any, ...], out: Tensor, job: str,
        norm: Norm | None = None, scale: float = 1.0,
    ) -> None:  # fmt: skip
        outs, ins = sum(m.weight.shape[0] for m in maps), maps[0].weight.shape[1]
        gated = job == "FFN_UP" and len(maps) == 2
        outs = outs // 2 if gated else outs
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
        weights, biases, ends = _laid_out(maps)
        work = b.scratch
        self.single_row_kernels.single_row_matmul[(-(-outs // rows), -(-ins // width))](
            x, *weights, *biases, *_norm_parts(norm, x), out,
            work["overflow"], b.suppress_mask, work["block_max"], work["block_argmax"], work["block_logsumexp"],
            *ends, outs, ins, 0.0 if norm is None else norm.eps, scale, self.max_increment,
            ROWS=rows, WIDTH=width, LANES=self._lanes(width), SPLIT=split,
            JOB=getattr(self.common_kernels, job).value, **self._norm_kind(norm),
            BIASED=maps[0].bias is not None, GATED=gated,
            ACTIVATION=self.common_kernels.ACTIVATIONS[self.config.activation],
            num_warps=split or self.tuning.warps, **self._launching(b),
        )  # fmt: skip

    def _split(self, ins: int) -> int:
        """Warps among which the inputs of one row's product are cut; 0: not by tensor cores."""
        cores, exact = (
            self.tuning.mma_warps,
            self.model.embedding.token_embeddings.dtype == torch.float32,
        )
        few = next_power_of_2(ins) * 16 <= self.tuning.mma_tile  # rows of a program
        return 0 if exact or not cores or not few or next_power_of_2(ins) < 32 * cores else cores

    def _lanes(self, width: int) -> int:
        return min(
            width, self.tuning.lane_bytes // self.model.embedding.token_embeddings.element_size()
        )

    def _some_rows(
        self, b: StepBuffers, x: Tensor, maps: tuple[Any, ...], out: Tensor, job: str,
        scale: float = 1.0,
    ) -> int:  # fmt: skip
        """Into how many slices the inputs were cut: that many parts are to be added up."""
        gated = job == "FFN_UP" and len(maps) == 2
        outs, ins = sum(m.weight.shape[0] for m in maps), maps[0].weight.shape[1]
        outs = outs // 2 if gated else outs
        batch = max(16, min(MAX_BATCH_TILE, next_power_of_2(b.rows)))
        exact = x.dtype == torch.float32
        name, rows, part, settings = self.tuning.plan_matmul(outs, ins, job, 1 + gated, exact)
        if job == "QKV":
            rows = _divisor(rows, maps[0].weight.shape[0], maps[1].weight.shape[0])
        weights, biases, ends = _laid_out(maps)
        work, slices = b.scratch, -(-ins // part)
        getattr(self.batch_kernels, name)[(-(-outs // rows), slices, -(-b.rows // batch))](
            x, *weights, *biases, out, b.suppress_mask, work["block_max"], work["block_argmax"], work["block_logsumexp"],
            *ends, outs, ins, b.rows, scale,
            BATCH=batch, ROWS=rows, JOB=getattr(self.common_kernels, job).value,
            BIASED=maps[0].bias is not None and job != "SPLIT_K", GATED=gated,
            ACTIVATION=self.common_kernels.ACTIVATIONS[self.config.activation],
            **settings, **self._launching(b),
        )  # fmt: skip
        return slices

    def _attend(self, b: StepBuffers, layer: int, scale: float | None) -> None:
        self.attention_kernels.attend_step[(b.rows * self.heads,)](
            b.scratch["qkv"], b.keys[layer], b.values[layer], b.scratch["attention_out"],
            *self._asked(b, layer, scale), **self._asking(b),
        )  # fmt: skip

    def _attend_out(self, b: StepBuffers, layer: int, block: EncoderBlock) -> None:
        out, dim = block.self_attention.to_out, self.config.dim
        asking = self._asking(b)
        outs = max(
            asking["GROUPS"] * asking["NEAR"], next_power_of_2(-(-dim // self.tuning.out_splits))
        )
        self.single_row_kernels.attend_and_project[(self.heads, -(-dim // outs))](
            b.scratch["qkv"], b.keys[layer], b.values[layer],
            out.weight, out.weight if out.bias is None else out.bias,
            b.scratch["x"], b.scratch["overflow"],
            *self._asked(b, layer, block.self_attention.scale), dim, self.max_increment,
            OUTS=outs, BIASED=out.bias is not None, **asking,
        )  # fmt: skip

    def _asked(self, b: StepBuffers, layer: int, scale: float | None) -> tuple[Any, ...]:
        work, window = b.scratch, self.config.windows[layer]
        return (
            b.lengths, b.left_padding, b.cache_rows, work.get("cos", work["x"]), work.get("sin", work["x"]),
            self.heads, self.kv_heads, b.capacity, self.head_dim**-0.5 if scale is None else scale,
            1 << 30 if window is None else window,
        )  # fmt: skip

    def _asking(self, b: StepBuffers) -> dict[str, Any]:
        """How keys lie in a program: groups by warp, some side by side in it, and repeats."""
        tuning, size, width = self.tuning, b.keys.element_size(), next_power_of_2(self.head_dim)
        keys, warps, regs = tuning.batch_keys, tuning.batch_keys_warps, tuning.batch_keys_maxnreg
        if b.rows == 1:
            keys, warps, regs = tuning.keys, tuning.keys_warps, None
        while keys * width * size > KV_TILE_BYTES:  # a program holds them in registers
            keys //= 2
        groups = min(warps, keys)
        near = min(max(1, 512 // (size * width)), keys // groups)
        return {
            "HEAD_DIM": self.head_dim, "WIDTH": width, "GROUPS": groups, "NEAR": near,
            "REPEATS": keys // (groups * near), "ROTARY": self.config.rope_theta is not None,
            "ROTATE_HALF": self.config.rotate_half, "USE_CACHE_ROWS": b.use_cache_rows, "num_warps": warps,
            "maxnreg": regs, **self._launching(b),
        }  # fmt: skip

    def logits_block(self, rows: int) -> int:
        """Tokens of the vocabulary that one program scores."""
        if rows > 1:
            return self.tuning.batch_logits_outs
        tuning = self.tuning
        tile = tuning.mma_logits_tile if self._split(self.config.dim) else tuning.logits_tile
        return max(1, tile // next_power_of_2(self.config.dim))

    def _launching(self, b: StepBuffers) -> dict[str, Any]:
        """Whether a kernel may start before the last has ended."""
        asked = self.tuning.pdl if b.rows == 1 else self.tuning.batch_pdl
        if asked and b.token.is_cuda:
            asked = torch.cuda.get_device_capability(b.token.device) >= (9, 0)
            return {"PDL": True, "launch_pdl": True} if asked else {"PDL": False}
        return {"PDL": False}

    def choose_token(self, b: StepBuffers) -> None:
        """The likeliest token, written down on the device; the next step starts from it."""
        work, blocks = b.scratch, b.scratch["block_max"].shape[1]
        self.common_kernels.argmax_token[(b.rows,)](
            work["block_max"], work["block_argmax"], work["block_logsumexp"], b.token, b.lengths, b.start_lengths, b.ended, b.end,
            b.output_tokens, b.log_probs, b.end_flags, blocks, b.capacity,
            BLOCKS=next_power_of_2(blocks), num_warps=4, **self._launching(b),
        )  # fmt: skip

    def _norm_kind(self, norm: Norm | None) -> dict[str, Any]:
        kind = "none" if norm is None else norm.kind
        shifted = norm is not None and norm.bias is not None
        return {"NORM": self.common_kernels.NORMS[kind], "SHIFTED": shifted}


class _Head:
    """The readout as a linear map: the embedding's table where it is tied."""

    def __init__(self, model: LanguageModel):
        own = model.readout.weight
        self.weight = model.embedding.token_embeddings if own is None else own
        self.bias = model.readout.bias


def _qkv(block: EncoderBlock) -> tuple[Any, ...]:
    own = block.self_attention
    return own.to_q, own.to_k, own.to_v


def _up(block: EncoderBlock) -> tuple[Any, ...]:
    ff = block.feed_forward
    return (ff.to_hidden,) if ff.to_gate is None else (ff.to_hidden, ff.to_gate)


def _laid_out(maps: tuple[Any, ...]) -> tuple[list[Tensor], list[Tensor], tuple[int, int]]:
    """Three weights and biases (the first again if there are fewer), and where two of them end."""
    weights = [m.weight for m in maps]
    biases = [m.weight if m.bias is None else m.bias for m in maps]
    ends = (weights[0].shape[0], sum(w.shape[0] for w in weights[:2]))
    fill = 3 - len(maps)
    return weights + weights[:1] * fill, biases + biases[:1] * fill, ends


def _norm_parts(norm: Norm | None, x: Tensor) -> tuple[Tensor, Tensor]:
    gain, shift = (None, None) if norm is None else (norm.gain, norm.bias)
    return x if gain is None else gain, x if shift is None else shift


def _divisor(most: int, *sizes: int) -> int:
    """The largest power of two up to `most` that divides all sizes: no block lies in two."""
    while any(size % most for size in sizes):
        most //= 2
    return most
