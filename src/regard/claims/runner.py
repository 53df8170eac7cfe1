"""Runs claims: side by side in processes, each result stored as soon as it is there."""

import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from regard.claims.claim import CLAIMS, FAMILIES, Claim, Trial
from regard.claims.results import Result, load_cached, store
from regard.errors import ConfigError, suggestion
from regard.files import import_file

IN_PROCESS = 4  # so few quick claims run here: starting processes takes longer


def select_claims(names: Iterable[str]) -> list[Claim]:
    """Claims by id, by the letter of a family, or by the file that defines them; none is all.

    >>> [claim.id for claim in select_claims(["c10", "A1"])]
    ['C10', 'A1']
    """
    families = list(FAMILIES)
    ordered = sorted(CLAIMS.values(), key=lambda c: (families.index(c.id[0]), int(c.id[1:])))
    chosen: dict[str, Claim] = {}
    for name in names:
        key = name.upper()
        if name.endswith(".py"):
            file = Path(str(import_file(name).__file__))
            custom = {claim.id: claim for claim in CLAIMS.values() if claim.file == file}
            if not custom:
                raise ConfigError(f"{name}: needs a function with @claim, got none")
            chosen |= custom
        elif key in FAMILIES:
            chosen |= {claim.id: claim for claim in ordered if claim.id[0] == key}
        elif key in CLAIMS:
            chosen[key] = CLAIMS[key]
        else:
            near = suggestion(key, [*CLAIMS, *FAMILIES])
            raise ConfigError(
                f"claim: needs an id such as A1, or a family such as A, got {name}{near}"
            )
    return list(chosen.values()) or ordered


def run_claims(
    claims: Iterable[Claim],
    *,
    seed: int = 0,
    full: bool = False,
    device: str = "cpu",
    jobs: int = 1,
    use_cache: bool = True,
    progress: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """Run the experiments of claims, in the order given.

    Args:
        claims: those to run.
        seed: of all random numbers.
        full: run the larger sizes, with more seeds.
        device: that models are trained on.
        jobs: processes, of one thread each; 1 runs in this process.
        use_cache: take results of the same code, size, seed and device from the cache.
        progress: called with every result, in the order of completion.

    >>> [(r.id, r.verdict) for r in run_claims(select_claims(["A1"]), use_cache=False)]
    [('A1', 'true')]
    """
    claims, results = list(claims), dict[str, Result]()

    def add(result: Result) -> None:
        results[result.id] = result
        progress(result)

    waiting = dict[str, list[str]]()
    for claim in claims:
        cached = None
        if claim.experiment is None:
            cached = Result(id=claim.id)
        elif use_cache:
            cached = load_cached(claim.id, Trial(seed, full=full, device=device))
        if cached:
            add(cached)
        else:
            waiting.setdefault(claim.study or claim.id, []).append(claim.id)
    settings = (seed, full, device)
    # trainings first: they take longest
    groups = sorted(waiting.values(), key=lambda ids: not any(CLAIMS[x].trained for x in ids))
    quick = len(groups) <= IN_PROCESS and not any(CLAIMS[ids[0]].trained for ids in groups)
    if jobs == 1 or quick or len(groups) < 2:
        for ids in groups:
            for name in ids:
                add(_run(name, *settings))
        return [results[claim.id] for claim in claims]
    with _workers(jobs) as pool:
        files = {str(claim.file) for claim in claims if claim.file and not _is_ours(claim)}
        futures = [pool.submit(_run_group, ids, files, settings) for ids in groups]
        for future in as_completed(futures):
            for result in future.result():
                add(result)
    return [results[claim.id] for claim in claims]


@contextmanager
def _workers(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that are ended at once on Ctrl-C; what is finished is in the cache."""
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(
        jobs, mp_context=spawn, initializer=torch.set_num_threads, initargs=(1,)
    )
    try:
        yield pool
        pool.shutdown()
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        pool.shutdown(wait=False, cancel_futures=True)
        raise


def _run_group(ids: list[str], files: set[str], settings: tuple[int, bool, str]) -> list[Result]:
    """In a worker: claims that share trainings, after importing the files that define them."""
    import regard.claims  # noqa: F401  registers the claims of the library

    for file in files - {str(claim.file) for claim in CLAIMS.values()}:
        import_file(file)
    return [_run(name, *settings) for name in ids]


def _run(name: str, seed: int, full: bool, device: str) -> Result:
    trial, start = Trial(seed, full=full, device=device), time.perf_counter()
    # experiments may seed torch's global generator, as training does
    state = torch.random.get_rng_state()
    try:
        torch.manual_seed(seed)
        result = Result(id=name, evidence=CLAIMS[name].run(trial), full=full)
    except Exception as error:  # reported beside the others
        result = Result(id=name, error=f"{type(error).__name__}: {error}", full=full)
    finally:
        torch.random.set_rng_state(state)
    result = replace(result, seconds=time.perf_counter() - start)
    store(result, trial)
    return result


def _is_ours(claim: Claim) -> bool:
    return claim.experiment is not None and claim.experiment.__module__.startswith("regard.")
