"""Tile sizes of the decoding kernels."""

from dataclasses import dataclass
from typing import Any

from regard.decode.gpu.buffers import MAX_SPLIT_K


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
