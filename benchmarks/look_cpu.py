"""Survey, pooled window and influence on a CPU against one fused attention forward.

python benchmarks/look_cpu.py            # under a minute on two cores
python benchmarks/look_cpu.py --each     # also each statistic alone
python benchmarks/look_cpu.py --sharp 20 # with scores twenty times as large: peaked rows
python benchmarks/look_cpu.py --threads 1 --n 4096  # CPU time then does not depend on other work

Float32, 8 heads of 64 features, n = 8192; medians of interleaved repeats, in seconds, of CPU time
with one thread.
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
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    work()
    return clock() - start


def peak_memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--n", type=int, default=8192)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sharp", type=float, default=1.0)
    parser.add_argument("--each", action="store_true")
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    q, k, v = torch.randn(3, 1, args.heads, args.n, 64).unbind(0)
    q *= args.sharp
    for causal in (False, True):
        mask = rg.Causal() if causal else None
        out, lse = rg.attend(q, k, v, mask=mask)
        site = rg.make_site(q[0], k[0], v[0], mask=mask)
        before = peak_memory()
        rg.survey(q, k, lse, mask=mask)
        extra = peak_memory() - before
        works = {
            "forward": lambda c=causal: F.scaled_dot_product_attention(q, k, v, is_causal=c),
            "survey": lambda m=mask, l=lse: rg.survey(q, k, l, mask=m),
            "window": lambda s=site: s.window(head=0, pool=(32, 32)),
            "influence": lambda m=mask, o=out, l=lse: rg.influence(q, k, v, o, l, mask=m),
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
        for name in ("window", "influence"):
            print(f"       {name}: {median[name] / base:.2f}")
        for name in ALONE if args.each else ():
            print(f"       {name} alone: {median[name] / base:.2f}")


if __name__ == "__main__":
    main()
