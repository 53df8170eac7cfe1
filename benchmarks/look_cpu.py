"""The survey on a CPU against one fused attention forward.

python benchmarks/look_cpu.py            # under a minute on two cores

Float32, 8 heads of 64 features, n = 8192; medians of interleaved repeats, in seconds.
"""

import argparse
import resource
import statistics
import time

import torch
import torch.nn.functional as F

import regard as rg


def timed(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--n", type=int, default=8192)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    q, k, v = torch.randn(3, 1, asked.heads, asked.n, 64).unbind(0)
    for causal in (False, True):
        mask = rg.Causal() if causal else None
        _, lse = rg.attend(q, k, v, mask=mask)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        rg.survey(q, k, lse, mask=mask)
        extra = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        forward, survey = [], []
        for _ in range(asked.rounds):
            forward.append(
                timed(lambda c=causal: F.scaled_dot_product_attention(q, k, v, is_causal=c))
            )
            survey.append(timed(lambda m=mask, l=lse: rg.survey(q, k, l, mask=m)))
        base, looked = statistics.median(forward), statistics.median(survey)
        print(
            f"{'causal' if causal else 'full':6} n = {asked.n}, {torch.get_num_threads()} threads: "
            f"forward {base:.2f} s, survey {looked:.2f} s, ratio {looked / base:.2f}, "
            f"{extra:.0f} MiB extra at most"
        )


if __name__ == "__main__":
    main()
