"""Survey, influence and window against a fused attention forward, on one GPU.

python benchmarks/look_ops.py            # about 3 minutes on an H200

Times are medians in milliseconds, bf16, 16 heads; ratios are to torch's FlashAttention forward and
to cuDNN's on the same inputs in the same run. All kernels are compiled in parallel first.
"""

import argparse
import subprocess
import sys

import torch
import torch.nn.functional as F
import triton
from torch.nn.attention import SDPBackend, sdpa_kernel

import regard as rg
from regard.ops.survey.statistics import DEFAULT_STATISTICS

HEADS = 16


def draw(n, d, batch=None):
    batch = max(1, 16384 // n) if batch is None else batch
    return torch.randn(3, batch, HEADS, n, d, device="cuda", dtype=torch.bfloat16).unbind(0)


def timed(work, rounds=200):
    return triton.testing.do_bench(work, warmup=30, rep=rounds, return_mode="median")


def forward(q, k, v, causal, backend):
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def check(d, causal):
    """Largest relative error of each statistic against float64 on the same bf16 inputs."""
    q, k, v = (x[:, :2] for x in draw(1024, d, 1))
    mask = rg.Causal() if causal else None
    q64, k64, v64 = q.double(), k.double(), v.double()
    out64, lse64 = rg.attend(q64, k64, v64, mask=mask, backend="reference")
    want = rg.survey(q64, k64, lse64, mask=mask, backend="reference")
    out, lse = rg.attend(q, k, v, mask=mask)
    got = rg.survey(q, k, lse, mask=mask, backend="kernel")
    names = [
        "entropy",
        "peak",
        "mean_distance",
        "self_share",
        "previous_share",
        "first_share",
        "local_share",
        "received",
    ]
    errors = {n: ((getattr(got, n) - getattr(want, n)).norm() / getattr(want, n).norm()).item()
              for n in names}  # fmt: skip
    want = rg.influence(q64, k64, v64, out64, lse64, mask=mask, backend="reference")
    got = rg.influence(q, k, v, out, lse, mask=mask, backend="kernel")
    errors |= {n: ((getattr(got, n) - getattr(want, n)).norm() / getattr(want, n).norm()).item()
               for n in ("effect_on_query", "strongest", "effect_of_key")}  # fmt: skip
    return errors


def measure(d, n, causal, selections):
    q, k, v = draw(n, d)
    mask = rg.Causal() if causal else None
    out, lse = rg.attend(q, k, v, mask=mask)
    flash = timed(lambda: forward(q, k, v, causal, SDPBackend.FLASH_ATTENTION))
    cudnn = timed(lambda: forward(q, k, v, causal, SDPBackend.CUDNN_ATTENTION))
    row = {"d": d, "n": n, "causal": causal, "flash": flash, "cudnn": cudnn}
    for name, names in selections.items():
        row[name] = timed(
            lambda s=names: rg.survey(q, k, lse, statistics=s, mask=mask, backend="kernel")
        )
    row["influence"] = timed(lambda: rg.influence(q, k, v, out, lse, mask=mask, backend="kernel"))
    return row


def show(row):
    parts = [f"{row['d']:4d} {row['n']:6d} {'causal' if row['causal'] else 'full  '}"]
    parts += [f"flash {row['flash']:.3f} cudnn {row['cudnn']:.3f}"]
    for name in row:
        if name not in ("d", "n", "causal", "flash", "cudnn"):
            t = row[name]
            parts.append(f"{name} {t:.3f} ({t / row['flash']:.2f} / {t / row['cudnn']:.2f})")
    print(" | ".join(parts), flush=True)


ALL = {"all": DEFAULT_STATISTICS}
PARTS = {
    "received": ["received"],
    "+entropy": ["received", "entropy"],
    "+mean_distance": ["received", "entropy", "mean_distance"],
    "+peak": ["received", "entropy", "mean_distance", "peak"],
} | ALL


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", type=int, nargs="+", default=[8192, 16384, 32768, 65536])
    parser.add_argument("--parts", action="store_true", help="also time each statistic alone")
    parser.add_argument("--only", nargs=2, type=int, help="head_dim, causal (0, 1): only compile")
    args = parser.parse_args()
    selections = PARTS if args.parts else ALL
    if args.only:
        measure(args.only[0], 512, bool(args.only[1]), selections)
        return
    warm = [subprocess.Popen([sys.executable, __file__, "--only", str(d), str(c),
                              *(["--parts"] if args.parts else [])])
            for d in (64, 128) for c in (0, 1)]  # fmt: skip
    for process in warm:
        process.wait()
    for d in (64, 128):
        for causal in (False, True):
            errors = check(d, causal)
            print(d, causal, {name: f"{e:.1e}" for name, e in errors.items()}, flush=True)
    for d in (64, 128):
        for n in args.sizes:
            for causal in (False, True):
                show(measure(d, n, causal, selections))
    q, k, v = draw(131072, 128, 1)
    out, lse = rg.attend(q, k, v, mask=rg.Causal())
    part = slice(100000, 100512)
    t = timed(lambda: rg.window(q, k, lse, rows=part, keys=part, mask=rg.Causal()))
    print(f"window 512x512 of n = 131072, {HEADS} heads: {t:.3f} ms")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    rg.survey(q, k, lse, mask=rg.Causal(), backend="kernel")
    torch.cuda.synchronize()
    extra = (torch.cuda.max_memory_allocated() - before) / 2**20
    print(f"survey of n = 131072 causal, {HEADS} heads: {extra:.0f} MiB extra")


if __name__ == "__main__":
    main()
