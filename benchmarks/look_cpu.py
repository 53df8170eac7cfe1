"""The survey on a CPU against one fused attention forward.

python benchmarks/look_cpu.py            # under a minute on two cores
python benchmarks/look_cpu.py --each     # also each statistic alone
python benchmarks/look_cpu.py --sharp 20 # with scores twenty times as large: peaked rows

Float32, 8 heads of 64 features, n = 8192; medians of interleaved repeats, in seconds.
"""

import argparse
import resource
import statistics
import time

import torch
import torch.nn.functional as F

import regard as rg

ALONE = ("entropy", "peak", "peak_key", "mean_distance", "received", "first_share", "local_share")


def timed(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def peak_memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--n", type=int, default=8192)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sharp", type=float, default=1.0)
    parser.add_argument("--each", action="store_true")
    args = parser.parse_args()
    q, k, v = torch.randn(3, 1, args.heads, args.n, 64).unbind(0)
    q *= args.sharp
    for causal in (False, True):
        mask = rg.Causal() if causal else None
        _, lse = rg.attend(q, k, v, mask=mask)
        before = peak_memory()
        rg.survey(q, k, lse, mask=mask)
        extra = peak_memory() - before
        works = {
            "forward": lambda c=causal: F.scaled_dot_product_attention(q, k, v, is_causal=c),
            "survey": lambda m=mask, l=lse: rg.survey(q, k, l, mask=m),
        }
        for name in ALONE if args.each else ():
            works[name] = lambda m=mask, l=lse, a=name: rg.survey(q, k, l, mask=m, statistics=[a])
        times = {name: [] for name in works}
        for _ in range(args.rounds):
            for name, work in works.items():
                times[name].append(timed(work))
        median = {name: statistics.median(values) for name, values in times.items()}
        base, survey = median["forward"], median["survey"]
        print(
            f"{'causal' if causal else 'full':6} n = {args.n}, {torch.get_num_threads()} threads: "
            f"forward {base:.2f} s, survey {survey:.2f} s, ratio {survey / base:.2f}, "
            f"{extra:.0f} MiB extra at most"
        )
        for name in ALONE if args.each else ():
            print(f"       {name} alone: {median[name] / base:.2f}")


if __name__ == "__main__":
    main()
