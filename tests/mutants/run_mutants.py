"""Mutation tests: each planted bug of the lists beside this file must fail its nearest tests.

    python tests/mutants/run_mutants.py            # all, two at a time
    python tests/mutants/run_mutants.py ops/masks  # those whose file or name contains this

Every bug is planted in a copy of the sources, never in the working tree. It is *caught* if one of
its tests fails, has *survived* if they pass, and is *stale* if its line or its tests are gone. All
but caught ones fail the run.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TIME_LIMIT, TIME_LIMIT_OF_ALL = 240.0, 1800.0  # seconds; most mutants take less than ten
PASSED, FAILED = 0, 1  # exit codes of pytest


@dataclass(frozen=True)
class Mutant:
    """A planted bug: `old` occurs once in the file and is replaced by `new`."""

    file: str  # below src/regard
    name: str  # what is wrong then
    old: str
    new: str
    tests: tuple[str, ...]


def read_mutants(folder: Path = HERE) -> list[Mutant]:
    """The mutants of all lists, sorted by list and order there."""
    return [
        Mutant(**row | {"tests": tuple(row["tests"])})
        for file in sorted(folder.glob("*.toml"))
        for row in tomllib.loads(file.read_text(encoding="utf-8"))["mutant"]
    ]


def run_tests(
    source: Path, tests: tuple[str, ...], *options: str, time_limit: float = TIME_LIMIT
) -> tuple[int | None, str]:
    """Exit code and output of pytest with the sources of a folder; None if it took too long."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, *tests]
    env = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    if "-x" in options:  # sources of one size, changed within a second, have the same bytecode
        env["PYTHONDONTWRITEBYTECODE"] = "1"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env=env, start_new_session=True, **pipes) as process:
        try:
            output, _ = process.communicate(timeout=time_limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the commands that tests start, too
            return None, f"the tests took more than {time_limit:.0f} s"
    return process.returncode, output


def try_mutant(mutant: Mutant, source: Path) -> tuple[str, str]:
    """Plant a bug and run its tests: caught, survived, stale or late, and what there is to say."""
    file = source / "regard" / mutant.file
    original = file.read_text(encoding="utf-8") if file.exists() else ""
    if (count := original.count(mutant.old)) != 1:
        return "stale", f"needs the line once in the file, got {count} times"
    for compiled in file.parent.glob(f"__pycache__/{file.stem}.*"):
        compiled.unlink()
    file.write_text(original.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        code, output = run_tests(source, mutant.tests, "-x")
    finally:
        file.write_text(original, encoding="utf-8")
    outcomes = {PASSED: "survived", FAILED: "caught", None: "late"}
    lines = output.strip().splitlines() or [""]
    failed = (line.split()[1] for line in lines if line.startswith("FAILED "))
    return outcomes.get(code, "stale"), next(failed, lines[-1])


def main(jobs: int, patterns: list[str]) -> int:
    chosen = [
        mutant
        for mutant in read_mutants()
        if not patterns or any(x in f"{mutant.file} {mutant.name}" for x in patterns)
    ]
    if not chosen:
        print(f"patterns: needs part of a file or name of a mutant, got {' '.join(patterns)}")
        return 2
    tests = tuple(dict.fromkeys(test for mutant in chosen for test in mutant.tests))
    started, counts, sources = time.monotonic(), Counter[str](), Queue[Path]()
    with tempfile.TemporaryDirectory(prefix="regard-mutants-") as folder:
        source = Path(shutil.copytree(ROOT / "src", Path(folder) / "0/src"))
        code, output = run_tests(source, tests, "-n", str(jobs), time_limit=TIME_LIMIT_OF_ALL)
        if code != PASSED:
            print(f"{output[-4000:]}\nwithout a planted bug the tests need to pass")
            return 1
        sources.put(source)
        for n in range(1, jobs):  # with the bytecode that the tests have just written
            sources.put(Path(shutil.copytree(source, Path(folder) / f"{n}/src")))

        def run(mutant: Mutant) -> tuple[Mutant, str, str, float]:
            source, start = sources.get(), time.monotonic()
            outcome, message = try_mutant(mutant, source)
            sources.put(source)
            return mutant, outcome, message, time.monotonic() - start

        with ThreadPoolExecutor(jobs) as pool:
            for mutant, outcome, message, seconds in pool.map(run, chosen):
                counts[outcome] += 1
                print(f"{outcome:8} {seconds:5.1f} s  {mutant.file}: {mutant.name}")
                print(f"{'':19}{message}", flush=True)
    packages = len({mutant.file.partition("/")[0] for mutant in chosen})
    parts = ", ".join(f"{counts[x]} {x}" for x in ("caught", "survived", "stale", "late"))
    took = time.monotonic() - started
    print(f"{len(chosen)} mutants in {packages} packages: {parts}; {took:.0f} s")
    return 0 if counts["caught"] == len(chosen) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("patterns", nargs="*", help="only those whose file or name contains one")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time")
    options = parser.parse_args()
    sys.exit(main(options.jobs, options.patterns))
