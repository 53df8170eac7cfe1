"""One case per term of a score: as a caller gives it, and what it does to the map, written out.

To test a new mask or bias, add its case: every test of terms loops over `CASES`.
"""

from typing import Any

import torch
from torch import Tensor

from regard import ops
from regard.ops import biases, masks

B, H, KV, Q, K, FEAT = 2, 4, 2, 7, 9, 3
AHEAD = 2  # the offset of every case: queries stand at 2 … 8
I, J = torch.arange(Q)[:, None] + AHEAD, torch.arange(K)
LENGTHS, SKIP = torch.tensor([9, 5]), torch.tensor([2, 0])
IDS = torch.tensor([[0] * 4 + [1] * 8, [0] * 7 + [1] * 5])
NUMBERS = torch.Generator().manual_seed(7)


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=NUMBERS)


def pick(table: Tensor) -> Tensor:
    """table[..., j - i], distances clipped at its radius: (head, query, key)."""
    radius = table.shape[-1] // 2
    return table[..., (J - I).clamp(-radius, radius) + radius]


def buckets() -> Tensor:
    # 8 buckets, both sides: 0 and 1 alone, 2-5 and 6-15 together; those ahead are 4 … 7
    far = (J - I).abs()
    return (J > I) * 4 + (far > 0).int() + (far > 1) + (far > 5)


SLOPES, BIAS, SINKS = numbers(H).abs(), numbers(B, H, Q, K), numbers(H)
TABLE, BUCKETS, RELATIVE = numbers(H, 5), numbers(8, H), numbers(5, FEAT)
ALLOWED = numbers(H, Q, K) > -0.5
CAUSAL, NEAR, REAL = J <= I, (I - J).abs() <= 2, (LENGTHS[:, None] > J) & (SKIP[:, None] <= J)
ALIBI = -SLOPES[:, None, None] * (I - J).abs()

# name: (the term, as a caller gives it, what it does to the map)
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "scale": ("scale", {"scale": 1.7}, {"scale": 1.7}),
    "score": ("score", {"score": ops.dot}, {"scale": 1.0}),
    "softcap": ("softcap", {"softcap": 0.8}, {"softcap": 0.8}),
    "sinks": ("sinks", {"sinks": SINKS}, {"sinks": SINKS}),
    "offset": ("offset", {"mask": ops.Causal(), "offset": AHEAD}, {"allowed": CAUSAL}),
    "Causal": ("mask", {"mask": ops.Causal()}, {"allowed": CAUSAL}),
    "Local": ("mask", {"mask": ops.Local(2)}, {"allowed": NEAR}),
    "Chunked": (
        "mask",
        {"mask": ops.Chunked(3, left_chunks=1)},
        {"allowed": (J // 3 <= I // 3) & (J // 3 >= I // 3 - 1)},
    ),
    "Padding": ("mask", {"mask": ops.Padding(LENGTHS, SKIP)}, {"allowed": REAL[:, None, None]}),
    "Documents": (
        "mask",
        {"mask": ops.Documents(IDS)},
        {"allowed": (IDS[:, I] == IDS[:, J][:, None])[:, None]},
    ),
    "Chosen keys": ("mask", {"mask": masks.ChosenKeys(ALLOWED)}, {"allowed": ALLOWED}),
    "Dense mask": ("mask", {"mask": masks.DenseMask(ALLOWED)}, {"allowed": ALLOWED}),
    "Both": ("mask", {"mask": ops.Causal() & ops.Local(2)}, {"allowed": CAUSAL & NEAR}),
    "Either": ("mask", {"mask": ops.Causal() | ops.Local(2)}, {"allowed": CAUSAL | NEAR}),
    "ALiBi": ("bias", {"bias": ops.ALiBi(SLOPES)}, {"added": ALIBI}),
    "Toeplitz": ("bias", {"bias": ops.Toeplitz(TABLE)}, {"added": pick(TABLE)}),
    "Buckets": (
        "bias",
        {"bias": ops.Buckets(BUCKETS, True, 16)},
        {"added": BUCKETS[buckets()].permute(2, 0, 1)},
    ),
    "Relative": ("bias", {"bias": ops.RelativeKeys(RELATIVE)}, {"asked": RELATIVE}),
    "Dense bias": ("bias", {"bias": biases.DenseBias(BIAS)}, {"added": BIAS}),
    "Sum": (
        "bias",
        {"bias": ops.ALiBi(SLOPES) + ops.Toeplitz(TABLE)},
        {"added": ALIBI + pick(TABLE)},
    ),
    "together": (
        "softcap",
        {"scale": 1.7, "softcap": 0.8, "sinks": SINKS, "bias": ops.ALiBi(SLOPES)}
        | {"mask": ops.Causal()},
        {"scale": 1.7, "softcap": 0.8, "sinks": SINKS, "added": ALIBI, "allowed": CAUSAL},
    ),
}
NO_KERNEL = {"score", "Relative", "Either"}  # the Triton kernels refuse these
NO_FUSED = {"score", "softcap", "together"}
NO_FLEX = {"score", "Relative", "Dense mask", "Dense bias"}  # not computed from two positions
NO_FLEX |= {"Chosen keys"}
# one object per registered class of masks and biases
EXAMPLES = {type(x): x for _, given, _ in CASES.values() for x in given.values()}


def draw() -> tuple[Tensor, Tensor, Tensor]:
    NUMBERS.manual_seed(7)
    return numbers(B, H, Q, FEAT), 0.7 * numbers(B, KV, K, FEAT), numbers(B, KV, K, 2)
