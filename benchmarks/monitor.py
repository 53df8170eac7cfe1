"""What watching a training costs: a step with and without the monitor, in one run.

python benchmarks/monitor.py        # under a minute on one CPU core; --cuda for a GPU

The number is the time of a training step (forward, backward, Adam) over that of the same step
without a monitor, medians of steps taken in turn.
"""

import argparse
import statistics
import time

import torch

import regard as rg
from regard import models


def step(model, optimiser, tokens):
    loss = torch.nn.functional.cross_entropy(model(tokens)[:, :-1].mT, tokens[:, 1:])
    optimiser.zero_grad()
    loss.backward()
    return loss


def timed(model, optimiser, tokens, rounds):
    """Median times of a bare step, a step that is watched, and one that is not due, in turn."""
    sync = torch.cuda.synchronize if tokens.is_cuda else lambda: None

    def one(after):
        sync()
        start = time.perf_counter()
        step(model, optimiser, tokens)
        after()
        optimiser.step()
        sync()
        return time.perf_counter() - start

    with rg.Monitor(model, every=2, sink=lambda record: None) as monitor:
        rows = [(one(monitor.step), one(lambda: None), one(monitor.step)) for _ in range(rounds)]
    due, bare, idle = (statistics.median(times[1:]) for times in zip(*rows, strict=True))
    return bare, due, idle


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cuda", action="store_true")
    cuda = parser.parse_args().cuda
    torch.manual_seed(0)
    torch.set_num_threads(1)
    device = "cuda" if cuda else "cpu"
    print("    n   bare ms   watched   not due   every 10   every 100")
    for n in (1024, 4096) if cuda else (128, 512):
        model = models.LanguageModel(models.language_small(vocab=256)).to(device)
        optimiser = torch.optim.Adam(model.parameters())
        tokens = torch.randint(256, (4096 // n if cuda else 2, n), device=device)
        bare, due, idle = timed(model, optimiser, tokens, rounds=100 if cuda else 15)
        spread = (1 + (due / bare - 1) / often for often in (10, 100))
        row = (due / bare, idle / bare, *spread)
        print(f"{n:5}  {1e3 * bare:8.1f}   " + "   ".join(f"{x:7.3f}" for x in row))


if __name__ == "__main__":
    main()
