"""A recurrence that returns all its gates, against torch's fused kernels, which do not.

python benchmarks/recurrence.py          # half a minute on two cores, less on a GPU

LSTM and GRU, one layer, forward (with --back also backward), float32, the same weights and inputs;
medians of interleaved rounds in milliseconds (CPU time on a CPU, of one thread with --threads 1),
and the ratio to torch's.
"""

import argparse
import statistics
import time

import torch
from torch import nn

import regard as rg
from regard.ops import GRUWeights, LSTMWeights

SIZES = ((1, 100, 256), (8, 100, 256), (32, 100, 256), (32, 100, 512), (64, 200, 512))


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def timed(work, device):
    synchronize(device)
    clock = time.perf_counter if device == "cuda" else time.process_time
    start = clock()
    work()
    synchronize(device)
    return (clock() - start) * 1e3


def contenders(kind, batch, steps, width, device, back):
    torch.manual_seed(0)
    theirs = (nn.LSTM if kind == "LSTM" else nn.GRU)(width, width, batch_first=True).to(device)
    read = LSTMWeights if kind == "LSTM" else GRUWeights
    weights = read.from_torch(*theirs.parameters())
    x = torch.randn(batch, steps, width, device=device)

    def fused():
        out, _ = theirs(x)
        if back:
            out.sum().backward()

    def with_gates():
        result = rg.ops.recur(x, weights, gates=True)
        if back:
            result.out.sum().backward()

    return fused, with_gates


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--back", action="store_true", help="also run the backward pass")
    parser.add_argument("--threads", type=int, help="on a CPU; all by default")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    where = torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} CPUs"
    passes = "forward and backward" if args.back else "forward"
    print(f"torch {torch.__version__}, {where}, {passes}")
    for kind in ("LSTM", "GRU"):
        for batch, steps, width in SIZES:
            works = contenders(kind, batch, steps, width, device, args.back)
            times = [[], []]
            with torch.set_grad_enabled(args.back):
                for n in range(args.rounds + 3):
                    for work, values in zip(works, times, strict=True):
                        elapsed = timed(work, device)
                        values += [elapsed] if n >= 3 else []
            fused, with_gates = map(statistics.median, times)
            print(
                f"{kind:4} {batch:3} × {steps} × {width}: torch {fused:7.2f} ms, "
                f"with gates {with_gates:7.2f} ms, {with_gates / fused:.2f}"
            )


if __name__ == "__main__":
    main()
