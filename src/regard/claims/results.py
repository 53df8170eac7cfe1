"""Claims run side by side in processes; their results as JSON, in a cache on disk, as JUnit XML."""

import hashlib
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, get_args
from xml.etree import ElementTree

import torch

import regard
from regard.claims.charts import Bars, Lines, Maps, Points
from regard.claims.claim import CLAIMS, FAMILIES, Claim, Evidence, Measure, Trial, Verdict
from regard.errors import ConfigError, counted, suggestion
from regard.files import import_file, parse_json, write_text

KINDS = {kind.__name__: kind for kind in (Bars, Lines, Maps, Points)}


@dataclass(frozen=True, kw_only=True)
class Result:
    """What running a claim gave: evidence, or the error that stopped it.

    >>> Result(id="A1", error="ValueError: nan").agrees
    False
    """

    id: str
    evidence: Evidence | None = None
    error: str = ""
    seconds: float = 0.0
    cached: bool = False
    full: bool = False

    @property
    def claim(self) -> Claim:
        """The claim."""
        return CLAIMS[self.id]

    @property
    def verdict(self) -> Verdict | None:
        """The verdict that the evidence supports; None if the experiment failed."""
        if self.claim.experiment is None:
            return self.claim.verdict
        return self.evidence.verdict if self.evidence else None

    @property
    def agrees(self) -> bool:
        """Whether the verdict is the declared one."""
        return self.verdict == self.claim.verdict

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON data, with the text of the claim."""
        about = {k: v for k, v in vars(self.claim).items() if k != "experiment"}
        fields = {k: v for k, v in vars(self).items() if k not in ("id", "evidence")}
        evidence = asdict(self.evidence) if self.evidence else None
        if self.evidence and evidence:
            evidence["chart"]["kind"] = type(self.evidence.chart).__name__
        found = {"found": self.verdict, "agrees": self.agrees}
        return about | found | fields | {"evidence": evidence}


def result_from_dict(data: dict[str, Any]) -> Result:
    """The result that `Result.to_dict` wrote."""
    evidence = data["evidence"]
    if evidence:
        chart = dict(evidence["chart"])
        kind = KINDS[chart.pop("kind")]
        measures = [Measure(**measure) for measure in evidence["measures"]]
        evidence = Evidence(**evidence | {"chart": kind(**chart), "measures": measures})
    fields = {name: data[name] for name in ("id", "error", "seconds", "cached", "full")}
    return Result(**fields, evidence=evidence)


# ---- cache


def load_cached(name: str, trial: Trial) -> Result | None:
    """The stored result of the same code, size, seed and device, if there is one."""
    with suppress(OSError):  # absent: run again, as where it is damaged
        checksum, _, data = _cache_file(name, trial).read_bytes().partition(b"\n")
        if checksum == _checksum(data).encode():
            return replace(result_from_dict(parse_json(data)), cached=True)
    return None


def store(result: Result, trial: Trial) -> None:
    """Store a result, if a cache can be written; errors are not stored."""
    if result.evidence is None:
        return
    file = _cache_file(result.id, trial)
    with suppress(OSError):  # a read-only home: nothing is cached
        file.parent.mkdir(parents=True, exist_ok=True)
        data = json.dumps(result.to_dict())
        write_text(file, f"{_checksum(data.encode())}\n{data}")


def _checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _cache_file(name: str, trial: Trial) -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    file = CLAIMS[name].file
    code = file.read_bytes() if file and file.is_file() else b""  # it may be one of the user's
    settings = repr((name, trial.seed, trial.full, trial.device, torch.__version__))
    key = hashlib.sha256(_library_digest() + code + settings.encode()).hexdigest()[:32]
    return root / "regard" / "claims" / f"{name}-{key}.json"


@cache
def _library_digest() -> bytes:
    """Hash of all sources of the library: any change of code makes stored results invalid."""
    digest = hashlib.sha256()
    for file in sorted(Path(regard.__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.digest()


# ---- JUnit


def junit_xml(results: Iterable[Result]) -> str:
    """Results as JUnit XML: one test case per claim; a failure where the verdict differs.

    >>> junit_xml([Result(id="A1", error="ValueError: nan")]).count("<error")
    1
    """
    results = list(results)
    suite = ElementTree.Element("testsuite", name="claims", tests=str(len(results)))
    for result in results:
        about = {"classname": result.claim.family, "name": f"{result.id} {result.claim.statement}"}
        case = ElementTree.SubElement(suite, "testcase", about, time=f"{result.seconds:.3f}")
        if result.error:
            ElementTree.SubElement(case, "error", message=result.error)
        elif result.claim.experiment is None:
            ElementTree.SubElement(case, "skipped", message=result.claim.remark)
        elif not result.agrees:
            text = f"declared {result.claim.verdict}, found {result.verdict}"
            ElementTree.SubElement(case, "failure", message=text)
    suite.set("failures", str(len(suite.findall("testcase/failure"))))
    suite.set("errors", str(len(suite.findall("testcase/error"))))
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def summarise(results: Sequence[Result]) -> str:
    """How many claims have each verdict, how many were cached, differ or failed.

    >>> summarise([Result(id="A1", error="ValueError: nan")])
    '1 claim: 1 failed to run'
    """
    counts = {name: sum(r.verdict == name for r in results) for name in get_args(Verdict)} | {
        "cached": sum(r.cached for r in results),
        "with another verdict than declared": sum(not (r.agrees or r.error) for r in results),
        "failed to run": sum(bool(r.error) for r in results),
    }
    parts = ", ".join(f"{n} {name}" for name, n in counts.items() if n)
    return f"{counted(len(results), 'claim')}: {parts}"


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

    waiting, settings = dict[str, list[str]](), (seed, full, device)
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
    # trainings first: they take longest
    groups = sorted(waiting.values(), key=lambda ids: not any(CLAIMS[x].trained for x in ids))
    in_process = len(groups) <= IN_PROCESS and not any(CLAIMS[ids[0]].trained for ids in groups)
    if jobs == 1 or in_process or len(groups) < 2:
        for name in chain.from_iterable(groups):
            add(_run(name, *settings))
    else:
        files = {str(claim.file) for claim in claims if claim.file}
        with _workers(jobs) as pool:
            futures = [pool.submit(_run_group, ids, files, settings) for ids in groups]
            for result in chain.from_iterable(x.result() for x in as_completed(futures)):
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
