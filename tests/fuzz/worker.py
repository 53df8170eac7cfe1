"""Runs the inputs of a target in child processes with limits of time and memory."""

import os
import re
import resource
import select
import shutil
import signal
import struct
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from fuzz.mutate import Files, minimize, mutate

CPU_SECONDS = 5  # per input
MEMORY_BYTES = 500 << 20  # per input, beyond what the process has after the seeds
STALLED_SECONDS = 60  # without an answer: the process is killed
INPUTS_PER_PROCESS = 400
MINIMIZE_SECONDS = 8.0
MAX_MESSAGE = 4000  # characters of a refusal
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]|Traceback")
BROKEN = "the fuzzer itself failed"
ACCEPTED, REFUSED = "accepted", "refused"


Errors = tuple[type[Exception], ...]


class Target(NamedTuple):
    """A parser under test.

    `parse` gets a folder with the files of an input; it returns for a good one and raises an error
    of `refusals` for a bad one. `seeds` are good inputs. `repair` renews what guards a mutated
    input, such as a checksum, so that the parser behind it is reached too.
    """

    name: str
    parse: Callable[[Path], object]
    seeds: Callable[[], list[Files]]
    repair: Callable[[Files], Files] | None = None
    needs_good_seeds: bool = True


class TooSlow(BaseException):
    """Raised after `CPU_SECONDS`."""


@dataclass
class Counts:
    """What became of the inputs of a target."""

    inputs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: dict[str, Files] = field(default_factory=dict)  # by signature, minimised


def fuzz(target: Target, seconds: float, seed: int, refusals: Errors) -> Counts:
    """Run the seeds of a target, and then mutations of them until the time is over."""
    seeds, counts, number = target.seeds(), Counts(), 0
    good = {ACCEPTED} if target.needs_good_seeds else {ACCEPTED, REFUSED}
    end = time.monotonic() + 10 * STALLED_SECONDS

    def make(number: int) -> Files:
        if number < len(seeds):
            return seeds[number]
        rng = Random(f"{seed} {target.name} {number}")
        files = mutate(rng.choice(seeds), rng)
        return target.repair(files) if target.repair and rng.random() < 0.7 else files

    while time.monotonic() < end:
        for outcome in _run(target, seeds, make, number, refusals):
            is_seed, number = number < len(seeds), number + 1
            if is_seed and outcome not in good:
                outcome = f"seed {number} is not accepted: {outcome}"
            if not is_seed:
                counts.inputs += 1
                counts.outcomes[outcome] += 1
            if outcome not in (ACCEPTED, REFUSED) and outcome not in counts.failures:
                files, started = make(number - 1), time.monotonic()
                is_small = is_seed or outcome.startswith(BROKEN)
                small = files if is_small else _minimized(target, files, outcome, refusals)
                counts.failures[outcome] = small
                end += time.monotonic() - started
            if number == len(seeds):
                end = time.monotonic() + seconds
            if time.monotonic() > end or outcome.startswith(BROKEN):
                break
        if any(outcome.startswith(BROKEN) for outcome in counts.failures):
            break
    return counts


def _minimized(target: Target, files: Files, outcome: str, refusals: Errors) -> Files:
    if run_alone(target, files, refusals) != outcome:
        return files  # depends on earlier inputs
    end = time.monotonic() + MINIMIZE_SECONDS

    def still_fails(files: Files) -> bool:
        return time.monotonic() < end and run_alone(target, files, refusals) == outcome

    return minimize(files, still_fails)


def run_alone(target: Target, files: Files, refusals: Errors) -> str:
    """The outcome of one input in a process of its own."""
    return next(_run(target, target.seeds()[:1], lambda _: files, 0, refusals), "died")


def _run(
    target: Target, seeds: list[Files], make: Callable[[int], Files], first: int, refusals: Errors
) -> Generator[str]:
    """The outcomes of inputs from number `first`, of one process; the last one if it dies."""
    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        code = 1
        try:
            os.close(reading)
            _serve(target, seeds, make, first, refusals, writing)
            code = 0
        except BaseException as error:
            _send(writing, f"{BROKEN}: {error!r} {_place(error)}")
        finally:
            os._exit(code)
    os.close(writing)
    try:
        while True:
            if not select.select([reading], [], [], STALLED_SECONDS)[0]:
                yield f"no answer in {STALLED_SECONDS} s"
                return
            head = _read(reading, 4)
            if len(head) < 4:
                break
            yield _read(reading, struct.unpack("I", head)[0]).decode()
    finally:
        os.close(reading)
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
    if os.WIFSIGNALED(status):
        yield f"died of {signal.Signals(os.WTERMSIG(status)).name}"


def _read(handle: int, size: int) -> bytes:
    data = b""
    while len(data) < size and (piece := os.read(handle, size - len(data))):
        data += piece
    return data


def _serve(
    target: Target,
    seeds: list[Files],
    make: Callable[[int], Files],
    first: int,
    refusals: Errors,
    out: int,
) -> None:
    folder = Path(tempfile.mkdtemp(prefix="regard-fuzz-"))
    os.dup2(os.open(os.devnull, os.O_RDWR), 2)  # C libraries print what they think of an input
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", module="PIL")  # notes about files that it reads or refuses
    signal.signal(signal.SIGPROF, _too_slow)
    try:
        for files in seeds[:3]:  # imports and caches come first, and count for nobody
            _outcome(target, files, folder, refusals)
        _limit_memory()
        for number in range(first, first + INPUTS_PER_PROCESS):
            outcome = _outcome(target, make(number), folder, refusals)
            _send(out, outcome)
            if outcome.startswith(("MemoryError", "TooSlow")):
                break
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _send(out: int, outcome: str) -> None:
    os.write(out, struct.pack("I", len(outcome.encode())) + outcome.encode())


def _too_slow(*_: object) -> None:
    raise TooSlow


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _outcome(target: Target, files: Files, folder: Path, refusals: Errors) -> str:
    place = folder / "input"
    shutil.rmtree(place, ignore_errors=True)
    for name, data in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(data)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        target.parse(place)
        return ACCEPTED
    except refusals as error:
        text = str(error)
        if not text or len(text) > MAX_MESSAGE or CONTROL.search(text):
            return f"a message that is empty, too long or unprintable {_place(error)}"
        return REFUSED
    except BaseException as error:
        return f"{type(error).__name__} {_place(error)}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _place(error: BaseException) -> str:
    """The innermost function of Regard that the error passed."""
    frames = traceback.extract_tb(error.__traceback__)
    own: Any = [frame for frame in frames if "/regard/" in frame.filename] or frames[-1:]
    return f"in {own[-1].filename.rpartition('/regard/')[2]}: {own[-1].name}" if own else ""
