"""How the work of a captured step is cut."""

from dataclasses import dataclass
from typing import Any

from regard.decode.gpu.buffers import MAX_SPLIT_K


@dataclass(frozen=True)
class Tuning:
    """How the work is cut: numbers an H200 likes, found by benchmarks/decode_gpu.py."""

    pdl: bool = True  # a kernel starts while the one before still works, and fetches weights
    batch_pdl: bool = True  # the same for more than one row
    mma_warps: int = 8  # warps of one row's product of 16-bit weights by tensor cores; 0: without
    mma_tile: int = 16384  # numbers of a matrix that such a program takes
    mma_logits_tile: int = 32768  # and one for the vocabulary
    tile: int = 8192  # and one without
    warps: int = 4
    lane_bytes: int = 512  # bytes of a row that a warp reads at once
    logits_tile: int = 16384
    max_fused_keys: int = (
        1024  # places of a cache up to which attention has the output's product in
    )
    out_splits: int = 4  # that the outputs of that product are cut into
    batch_outs: int = 32  # outputs of a program of `batch_matmul`
    batch_depth: int = 128  # inputs it takes at a time
    batch_stages: int = 4
    min_programs: int = 64  # that many at least: else the inputs are cut too
    batch_logits_outs: int = 64
    weights_in_registers: bool = (
        True  # a batch's weights of 16 bits are in registers before the wait
    )
    register_outs: int = 32  # outputs of such a program
    register_warps: int = 8
    register_depth: int = 128  # inputs of one of its warps, at most
    register_maxnreg: int | None = 128
    keys: int = 128  # keys that an attention of one row takes at a time
    keys_warps: int = 8
    batch_keys: int = 64  # and one of more rows
    batch_keys_warps: int = 4
    batch_keys_maxnreg: int | None = 128  # registers of a thread, at most
    steps_per_graph: int = 8  # steps of one graph

    def plan_matmul(
        self, outs: int, ins: int, job: str, maps: int, exact: bool
    ) -> tuple[str, int, int, dict[str, Any]]:
        """A kernel for a batch's product, outputs and inputs of its programs, what it is told.

        >>> Tuning().plan_matmul(1024, 4096, "SPLIT_K", maps=1, exact=False)[:3]
        ('batch_matmul_registers', 32, 1024)
        """
        found = None if exact or job == "LOGITS" else self._held(outs, ins, job, maps)
        if found is not None:
            return found
        rows = self.batch_logits_outs if job == "LOGITS" else self.batch_outs
        depth = min(self.batch_depth, next_power_of_2(ins))
        deep = -(-ins // depth) * depth
        if job == "SPLIT_K":
            deep = self._slice(outs, rows, ins, next_power_of_2(deep), depth)
        settings = {"DEPTH": depth, "SLICE": deep, "STAGES": 2 if exact else self.batch_stages}
        settings |= {"PRECISION": "ieee" if exact else "tf32", "num_warps": 4}
        return "batch_matmul", rows, deep, settings

    def _held(
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
        """Inputs of a program that leaves a part: fewer while there are few programs."""
        least = max(least, next_power_of_2(-(-ins // MAX_SPLIT_K)))
        while deep > least and -(-outs // rows) * -(-ins // deep) < self.min_programs:
            deep //= 2
        return max(deep, least)


def next_power_of_2(n: int) -> int:
    """The least power of two that is not less.

    >>> next_power_of_2(5), next_power_of_2(8)
    (8, 8)
    """
    return 1 << max(0, n - 1).bit_length()
