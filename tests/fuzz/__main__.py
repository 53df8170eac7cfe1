"""`make fuzz`: mutated inputs to every parser and route; only our errors may come out.

FUZZ_SECONDS per target (10), FUZZ_SEED (0), FUZZ=names of targets, separated by commas (all).
"""

import os
import sys
import time

os.environ |= {"OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1", "TRANSFORMERS_VERBOSITY": "error"}

from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch

from fuzz import routes, targets
from fuzz.worker import ACCEPTED, BROKEN, REFUSED, Counts, Target, fuzz
from regard.errors import RegardError

BUILD = Path(__file__).parents[2] / "build/fuzz"
SECONDS, SEED = float(os.environ.get("FUZZ_SECONDS", 10)), int(os.environ.get("FUZZ_SEED", 0))
JOBS = 2


def main() -> int:
    torch.set_num_threads(1)
    known, started = targets.TARGETS + routes.targets(), time.monotonic()
    names = [name for name in os.environ.get("FUZZ", "").split(",") if name]
    chosen = [x for x in known if not names or any(name in x.name for name in names)]
    print(f"seed {SEED}, {SECONDS:g} s each, {len(chosen)} targets")
    print(f"{'target':<36}{'inputs':>9}{'accepted':>10}{'refused':>9}{'failures':>10}")
    total, failed = Counts(), 0
    for target, counts in _run_all(chosen):
        _report(target.name, counts)
        total.inputs += counts.inputs
        total.outcomes += counts.outcomes
        failed += len(counts.failures)
    total.failures = dict.fromkeys(map(str, range(failed)), {})
    _report(f"all, in {(time.monotonic() - started) / 60:.0f} min", total)
    return int(failed > 0)


def _run_all(targets: list[Target]) -> Iterator[tuple[Target, Counts]]:
    """Each target in a process of its own, which forks those of its inputs; no threads here."""
    context, waiting, running = get_context("fork"), targets[::-1], {}
    while waiting or running:
        while waiting and len(running) < JOBS:
            target, (receiving, sending) = waiting.pop(), context.Pipe(duplex=False)
            process = context.Process(
                target=lambda out, x: out.send(_fuzz(x)), args=[sending, target]
            )
            process.start()
            sending.close()
            running[receiving] = target, process
        done: list[Any] = wait(list(running))
        for receiving in done:
            target, process = running.pop(receiving)
            try:
                yield target, receiving.recv()
            except EOFError:
                yield target, Counts(failures={BROKEN: {"input": b""}})
            process.join()


def _fuzz(target: Target) -> Counts:
    sys.stdin = open(os.devnull)  # noqa: SIM115
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    return fuzz(target, SECONDS, SEED, (RegardError,))


def _report(name: str, counts: Counts) -> None:
    n, outcomes = counts.inputs, counts.outcomes
    row = f"{n:>9,}{outcomes[ACCEPTED]:>10,}{outcomes[REFUSED]:>9,}{len(counts.failures):>10}"
    print(f"{name:<36}{row}", flush=True)
    for number, (outcome, files) in enumerate(counts.failures.items()):
        if not files:
            continue
        folder = BUILD / f"{name.replace('/', '_').replace(' ', '-')}-{number}"
        for file, content in files.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_bytes(content)
        small = {x: c for x, c in files.items() if len(c) < 200} or dict(list(files.items())[:1])
        print(f"    {outcome}\n        {folder}: {str(small)[:300]}")


if __name__ == "__main__":
    sys.exit(main())
