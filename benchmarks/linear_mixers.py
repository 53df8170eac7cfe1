"""CPU time of `ops.mixers` beside the torch implementation of a gated delta rule in transformers.

python benchmarks/linear_mixers.py        # half a minute on a core

Columns: tokens, half-life of the decay, seconds of theirs; as multiples of it `mix`, `mix_survey`,
the statistics that need no pairs of tokens, and `mix_influence`.
"""

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from transformers.models.qwen3_next import modeling_qwen3_next

from regard.ops import mixers

HEADS, WIDTH, ROUNDS = 4, 128, 3
LINEAR = ("half_life", "write", "surprise", "state_norm", "state_rank")  # no pairs of tokens
CASES = [(4096, None), (16384, None), (4096, 70.0), (4096, 700.0)]  # None: at initialisation


def seconds(run: Callable[[], object]) -> float:
    """CPU time of a call."""
    start = time.process_time()
    run()
    return time.process_time() - start


def measure(tokens: int, half_life: float | None) -> list[float]:
    """Seconds of transformers, and the time of each function over it; the best of some rounds."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, tokens, HEADS, WIDTH) for _ in range(3))
    beta, decay = torch.rand(1, tokens, HEADS), torch.full((1, tokens, HEADS), -0.6931)
    if half_life is None:  # A uniform up to 16, as Qwen3NextGatedDeltaNet initialises it
        decay = -16 * torch.rand(HEADS) * F.softplus(torch.randn(1, tokens, HEADS) + 1)
    else:
        decay = decay / half_life
    theirs = modeling_qwen3_next.torch_chunk_gated_delta_rule
    unit = F.normalize(q, dim=-1) * WIDTH**-0.5, F.normalize(k, dim=-1)
    rows = [x.transpose(1, 2) for x in (*unit, v, decay, beta)]
    mixer = mixers.delta_rule(*rows)  # pyright: ignore[reportCallIssue]
    runs = [
        lambda: theirs(q, k, v, decay, beta, use_qk_l2norm_in_kernel=True),
        lambda: mixers.mix(mixer),
        lambda: mixers.mix_survey(mixer),
        lambda: mixers.mix_survey(mixer, statistics=LINEAR),
        lambda: mixers.mix_influence(mixer),
    ]
    first, *others = (
        min(x) for x in zip(*[map(seconds, runs) for _ in range(ROUNDS)], strict=True)
    )
    return [first, *(x / first for x in others)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    with torch.no_grad():
        for tokens, half_life in CASES:
            base, *ratios = measure(tokens, half_life)
            columns = "".join(f"{ratio:9.2f}" for ratio in ratios)
            print(f"{tokens:11} {half_life or 'init':>10} {base:8.2f} s{columns}", flush=True)
