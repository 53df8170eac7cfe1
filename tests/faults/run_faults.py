"""Faults: commands are killed, interrupted, starved of disk and given damaged files; none is lost.

    python tests/faults/run_faults.py                    # all targets of targets.py, two at a time
    python tests/faults/run_faults.py train --seed 7 --seconds 30

A command that was stopped is given again until it ends by itself; what it wrote must then be, byte
for byte, what it writes without any fault. A damaged file must be refused in one line, or change
nothing in the end. Commands run in forks of this process, as importing torch would take the time.
"""

import argparse
import faulthandler
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

from targets import DAMAGE, FULL, SIGNALS, TARGETS, Target  # imports torch, which forks share

from regard.errors import RegardError

MAX_EVENTS = 3  # per round, before the command may end
TIME_LIMIT = 120.0  # of one command: longer is a loss


@dataclass
class Child:
    """A call in a fork of this process, with its output."""

    call: Callable[[], object]
    file_limit: int | None = None
    output: str = ""
    code: int = field(init=False)

    def __post_init__(self) -> None:
        self.read, write = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _run_forked(self.call, self.file_limit, write)
        os.close(write)
        os.set_blocking(self.read, False)

    def poll(self) -> bool:
        """Whether it has ended."""
        try:
            while chunk := os.read(self.read, 1 << 16):
                self.output = (self.output + chunk.decode(errors="replace"))[-8000:]
        except BlockingIOError:
            pass
        done, status = os.waitpid(self.pid, os.WNOHANG)
        if done:
            self.code = os.waitstatus_to_exitcode(status)
            os.close(self.read)
        return bool(done)

    def wait(self, seconds: float) -> bool:
        """Wait for its end at most so long; whether it has ended."""
        end = time.monotonic() + seconds
        while not (done := self.poll()) and time.monotonic() < end:
            time.sleep(0.002)
        return done


def _run_forked(call: Callable[[], object], file_limit: int | None, write: int) -> None:
    code = 70
    try:
        for kind in SIGNALS.values():
            if kind not in (signal.SIGKILL, signal.SIGINT):
                signal.signal(kind, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in (1, 2):
            os.dup2(write, number)
        sys.stdout, sys.stderr = (open(n, "w", closefd=False) for n in (1, 2))  # noqa: SIM115
        faulthandler.register(signal.SIGUSR1, file=2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if file_limit is not None:  # a write beyond it fails as one to a full disk does
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, resource.RLIM_INFINITY))
        call()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        code = 130
    except RegardError as error:  # of a call that is no command
        print(f"regard: {error}")
        code = 2
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class Loss(Exception):
    """Something that a fault has changed for good."""


def run_target(target: Target, seed: int, seconds: float) -> tuple[Counter, list[str]]:
    """Events by kind and the losses of one target, within a time."""
    rng, counts, losses = random.Random(f"{seed} {target.name}"), Counter(), list[str]()
    with tempfile.TemporaryDirectory(prefix="regard-faults-") as temporary:
        whole = Path(temporary, "whole")
        whole.mkdir()
        target.prepare(whole)
        start = time.monotonic()
        child = Child(lambda: target.start(whole))
        if not child.wait(TIME_LIMIT) or child.code:
            return counts, [f"{target.name}: failed without any fault:\n{child.output}"]
        length, expected = time.monotonic() - start, target.result(whole)
        size = max(x.stat().st_size for x in whole.rglob("*") if x.is_file())
        end, number = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            number += 1
            folder = Path(temporary, str(number))
            folder.mkdir()
            try:
                _round(target, folder, rng, counts, (length, size), expected)
            except Loss as loss:
                losses.append(f"{target.name}, seed {seed}, round {number}: {loss}")
            shutil.rmtree(folder, ignore_errors=True)
        counts["rounds"] = number
    return counts, losses


def run_named(name: str, seed: int, seconds: float) -> tuple[Counter, list[str]]:
    """`run_target` by the name of a target, which another process can be given."""
    return run_target(next(x for x in TARGETS if x.name == name), seed, seconds)


def _round(
    target: Target,
    folder: Path,
    rng: random.Random,
    counts: Counter,
    sizes: tuple[float, int],
    expected: dict[str, object],
) -> None:
    target.prepare(folder)
    call, history, damaged = target.start, [], dict[Path, bytes]()
    for _ in range(rng.randint(1, MAX_EVENTS)):
        fault = rng.choice(target.faults)
        history.append(fault)
        ended = _stop(target, call, folder, fault, rng, sizes)
        counts[fault if not ended else f"{fault}, too late"] += 1
        call = target.again or target.start
        _try(target.check, folder, history)
        if target.damage and not ended and rng.random() < 0.3:
            damaged |= (changed := _damage(target, folder, rng))
            counts.update(found := [DAMAGE] * len(changed))
            history += found
    child = Child(lambda: call(folder))
    _wait(child, f"{history}: the last command")
    if child.code and DAMAGE in history and child.output.rstrip().count("regard: ") == 1:
        counts["refused"] += 1  # in one line: the user deletes the file or starts anew
        return
    if child.code:
        raise Loss(f"{history}: exit code {child.code}:\n{child.output}")
    _try(target.check, folder, history)
    # what nothing had to read, such as an older checkpoint, is damaged still
    left = {str(x.relative_to(folder)) for x, y in damaged.items() if _content(x) == y}
    if differences := _differences(expected, target.result(folder), left):
        raise Loss(f"{history}: {differences}:\n{child.output}")
    if left := [*folder.rglob("*.writing"), *folder.rglob("*.partial*")]:
        raise Loss(f"{history}: left behind {[x.name for x in left]}")


def _stop(
    target: Target,
    call: Callable[[Path], object],
    folder: Path,
    fault: str,
    rng: random.Random,
    sizes: tuple[float, int],
) -> bool:
    """Run a command under one fault; whether it ended before that."""
    length, size = sizes
    if fault == FULL:
        child = Child(lambda: call(folder), int(size * rng.random() ** 2))
    else:
        child = Child(lambda: call(folder))
        if child.wait(length * rng.random()):
            return True
        os.kill(child.pid, SIGNALS[fault])
    _wait(child, fault)
    return fault == FULL and child.code == 0


def _wait(child: Child, what: str) -> None:
    """Wait for the end of a command; one that does not end, or shows a traceback, is a loss."""
    if not child.wait(TIME_LIMIT):
        os.kill(child.pid, signal.SIGUSR1)  # prints where its threads are
        child.wait(1)
        os.kill(child.pid, signal.SIGKILL)
        child.wait(TIME_LIMIT)
        raise Loss(f"{what}: had not ended after {TIME_LIMIT:.0f} seconds:\n{child.output}")
    if "Traceback" in child.output:
        raise Loss(f"{what}: a traceback:\n{child.output}")


def _try(check: Callable[[Path], object], folder: Path, history: list[str]) -> None:
    try:
        check(folder)
    except Exception as error:  # of any kind: what a fault has left cannot be read
        raise Loss(f"{history}: {type(error).__name__}: {error}") from error


def _damage(target: Target, folder: Path, rng: random.Random) -> dict[Path, bytes]:
    """Cut a file short or change a byte of it; what it is then, if there is one."""
    files = sorted(x for glob in target.damage for x in folder.glob(glob) if x.is_file())
    files = [x for x in files if x.stat().st_size]
    if not files:
        return {}
    file = rng.choice(files)
    data = bytearray(file.read_bytes())
    place = rng.randrange(len(data))
    if rng.random() < 0.5:
        data[place] ^= 1 << rng.randrange(8)
    else:
        del data[place:]
    file.write_bytes(data)
    return {file: bytes(data)}


def _content(file: Path) -> bytes | None:
    return file.read_bytes() if file.is_file() else None


def _differences(expected: dict[str, object], got: dict[str, object], left: set[str]) -> str:
    names = (expected.keys() | got.keys()) - left
    names = sorted(x for x in names if expected.get(x) != got.get(x))
    return "; ".join(f"{x}: needs {expected.get(x)}, got {got.get(x)}" for x in names)


def main() -> None:
    """Run the targets that are named, or all, and print what happened."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="Parts of names of targets.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=150.0, help="Per target.")
    options = parser.parse_args()
    targets = [x for x in TARGETS if not options.names or any(n in x.name for n in options.names)]
    losses = list[str]()
    with ProcessPoolExecutor(2, get_context("fork")) as pool:
        runs = [pool.submit(run_named, x.name, options.seed, options.seconds) for x in targets]
        for target, run in zip(targets, runs, strict=True):
            counts, lost = run.result()
            losses += lost
            events = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
            print(f"{target.name:12} {len(lost)} losses; {events}", flush=True)
    print("\n".join(losses))
    sys.exit(bool(losses or not targets))


if __name__ == "__main__":
    main()
