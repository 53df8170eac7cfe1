"""How the work of a captured step is cut."""

from dataclasses import dataclass
from typing import Any

from regard.decode.buffers import MOST_PARTS


@dataclass(frozen=True)
class Tuning:
    """How the work is cut: numbers an H200 likes, found by benchmarks/decode_gpu.py."""

    chained: bool = True  # a kernel starts while the one before still works, and fetches weights
    chained_rows: bool = True  # the same for more than one row
    cores: int = 8  # warps of one row's product of 16-bit weights by tensor cores; 0: without
    cores_tile: int = 16384  # numbers of a matrix that such a program takes
    cores_scores: int = 32768  # and one for the vocabulary
    tile: int = 8192  # and one without
    warps: int = 4
    lanes: int = 512  # bytes of a row that a warp reads at once
    scores_tile: int = 16384
    joined_keys: int = 1024  # places of a cache up to which attention has the output's product in
    slices: int = 4  # that the outputs of that product are cut into
    outs: int = 32  # outputs of a program of `some_rows`
    depth: int = 128  # inputs it takes at a time
    stages: int = 4
    programs: int = 64  # that many at least: else the inputs are cut too
    scores_outs: int = 64
    held: bool = True  # a batch's weights of 16 bits are in registers before the wait
    held_outs: int = 32  # outputs of such a program
    held_warps: int = 8
    held_deep: int = 128  # inputs of one of its warps, at most
    held_regs: int | None = 128
    keys: int = 128  # keys that an attention of one row takes at a time
    keys_warps: int = 8
    keys_rows: int = 64  # and one of more rows
    keys_rows_warps: int = 4
    keys_rows_regs: int | None = 128  # registers of a thread, at most
    together: int = 8  # steps of one graph

    def cut(
        self, outs: int, ins: int, job: str, maps: int, exact: bool
    ) -> tuple[str, int, int, dict[str, Any]]:
        """A kernel for a batch's product, outputs and inputs of its programs, what it is told.

        >>> Tuning().cut(1024, 4096, "PARTS", maps=1, exact=False)[:3]
        ('held_rows', 32, 1024)
        """
        found = None if exact or job == "SCORES" else self._held(outs, ins, job, maps)
        if found is not None:
            return found
        rows = self.scores_outs if job == "SCORES" else self.outs
        depth = min(self.depth, power(ins))
        deep = -(-ins // depth) * depth
        if job == "PARTS":
            deep = self._slice(outs, rows, ins, power(deep), depth)
        settings = {"DEPTH": depth, "SLICE": deep, "STAGES": 2 if exact else self.stages}
        settings |= {"PRECISION": "ieee" if exact else "tf32", "num_warps": 4}
        return "some_rows", rows, deep, settings

    def _held(
        self, outs: int, ins: int, job: str, maps: int
    ) -> tuple[str, int, int, dict[str, Any]] | None:
        parts, rows, warps = job == "PARTS", self.held_outs, self.held_warps
        deep = warps * max(32, min(self.held_deep, power(-(-ins // warps))))
        if parts:
            deep = self._slice(outs, rows, ins, deep, 32 * warps)
        if not self.held or not (parts or deep >= ins):
            return None
        settings = {"DEEP": deep // warps, "SPLIT": warps, "maxnreg": self.held_regs}
        rows = max(8, rows // maps)  # as many weights in all
        return "held_rows", rows, deep, settings | {"num_warps": warps}

    def _slice(self, outs: int, rows: int, ins: int, deep: int, least: int) -> int:
        """Inputs of a program that leaves a part: fewer while there are few programs."""
        least = max(least, power(-(-ins // MOST_PARTS)))
        while deep > least and -(-outs // rows) * -(-ins // deep) < self.programs:
            deep //= 2
        return max(deep, least)


def power(n: int) -> int:
    """The least power of two that is not less.

    >>> power(5), power(8)
    (8, 8)
    """
    return 1 << max(0, n - 1).bit_length()
