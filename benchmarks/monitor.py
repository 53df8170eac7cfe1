"""The cost of `AttentionMonitor`: a training step with and without it, in one run.

python benchmarks/monitor.py        # under a minute on one CPU core; --cuda for a GPU

Reported is the time of a training step (forward, backward, Adam) over that of the same step without
a monitor, as medians of alternating steps.
"""

import argparse
import statistics
import time

import torch

import regard as rg
from regard import models


def step(model, optimizer, tokens):
    loss = torch.nn.functional.cross_entropy(model(tokens)[:, :-1].mT, tokens[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    return loss


def median_times(model, optimizer, tokens, rounds):
    """Median times of steps: monitored, bare, not due, and the one before a monitored one."""
    sync = torch.cuda.synchronize if tokens.is_cuda else lambda: None
    # process time on a CPU: independent of other load
    clock = time.perf_counter if tokens.is_cuda else time.process_time

    def time_step(after):
        sync()
        start = clock()
        step(model, optimizer, tokens)
        after()
        optimizer.step()
        sync()
        return clock() - start

    with rg.AttentionMonitor(model, every=3, output=lambda record: None) as monitor:
        cycle = (monitor.step, lambda: None, monitor.step, monitor.step)
        rows = [[time_step(after) for after in cycle] for _ in range(rounds)]
    # the last step of a cycle installs the hooks of the next one
    return [statistics.median(times[1:]) for times in zip(*rows, strict=True)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cuda", action="store_true")
    cuda = parser.parse_args().cuda
    torch.manual_seed(0)
    torch.set_num_threads(1)
    device = "cuda" if cuda else "cpu"
    print("    n   bare ms   monitored not due   before it   every 10   every 100")
    for n in (1024, 4096) if cuda else (128, 512):
        model = models.LanguageModel(models.language_small(vocab=256)).to(device)
        optimizer = torch.optim.Adam(model.parameters())
        tokens = torch.randint(256, (4096 // n if cuda else 2, n), device=device)
        due, bare, idle, before = median_times(model, optimizer, tokens, rounds=100 if cuda else 12)
        more = (due + before) / bare - 2
        row = (due / bare, idle / bare, before / bare, 1 + more / 10, 1 + more / 100)
        print(f"{n:5}  {1e3 * bare:8.1f}   " + "   ".join(f"{x:7.3f}" for x in row))


if __name__ == "__main__":
    main()
