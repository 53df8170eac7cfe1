"""A recurrence with all its gates kept, against torch's fused kernels, which keep them inside.

python benchmarks/recurrence.py          # half a minute on two cores, less on a GPU

LSTM and GRU, one layer, a forward pass (and with --back a pass back as well), float32, the same
weights and inputs; medians of interleaved rounds in milliseconds, and ours as a share of torch's.
"""

import argparse
import statistics
import time

import torch
from torch import nn

import regard as rg
from regard.ops import GRUWeights, LSTMWeights

SIZES = ((1, 100, 256), (8, 100, 256), (32, 100, 256), (32, 100, 512), (64, 200, 512))


def settle(device):
    if device == "cuda":
        torch.cuda.synchronize()


def timed(work, device):
    settle(device)
    start = time.perf_counter()
    work()
    settle(device)
    return (time.perf_counter() - start) * 1e3


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

    def opened():
        walk = rg.recur(x, weights, gates=True)
        if back:
            walk.out.sum().backward()

    return fused, opened


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--back", action="store_true", help="with the pass back")
    asked = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    where = torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} CPUs"
    print(
        f"torch {torch.__version__}, {where}{', forward and back' if asked.back else ', forward'}"
    )
    for kind in ("LSTM", "GRU"):
        for batch, steps, width in SIZES:
            ways = contenders(kind, batch, steps, width, device, asked.back)
            times = [[], []]
            with torch.set_grad_enabled(asked.back):
                for n in range(asked.rounds + 3):
                    for work, kept in zip(ways, times, strict=True):
                        took = timed(work, device)
                        kept += [took] if n >= 3 else []
            fused, opened = map(statistics.median, times)
            print(
                f"{kind:4} {batch:3} × {steps} × {width}: torch {fused:7.2f} ms, "
                f"open {opened:7.2f} ms, {opened / fused:.2f}"
            )


if __name__ == "__main__":
    main()
