"""The claims view: statements about sequence models, their verdicts and evidence, run on demand."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, get_args

from pydantic import Field
from torch.nn.modules.module import register_module_forward_pre_hook

from regard.claims import (
    CLAIMS,
    Bars,
    Claim,
    Result,
    Trial,
    Verdict,
    claim_answers,
    run_claims,
    select_claims,
)
from regard.claims.charts import describe_chart, draw_chart
from regard.claims.claim import FAMILIES
from regard.claims.gallery import LABELS
from regard.claims.results import load_cached, result_from_dict
from regard.errors import ConfigError, check_choice, counted, suggestion
from regard.web.explorer.explorer import Explorer, QueryRequest, Rows, finite, query, table_of
from regard.web.jobs import Job
from regard.work.ask import MIN_SCORE, find_answers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MIN_CLAIM_SCORE = 0.4  # of a claim that is listed beside a question
TYPICAL_SECONDS = {False: 1.0, True: 20.0}  # by whether models are trained; for the progress bar


class ClaimRequest(QueryRequest):
    """A claim by its id."""

    claim: str = Field(max_length=10)


class ClaimsRequest(QueryRequest):
    """What to list, and the claim to open."""

    family: str | None = Field(None, max_length=2)
    verdict: str | None = Field(None, max_length=20)
    search: str | None = Field(None, max_length=200)
    claim: str | None = Field(None, max_length=10)


def claims_table(response: dict[str, Any]) -> Rows:
    """One row per claim, or the numbers of the open one."""
    if response["open"]:
        return evidence_table(response["open"])
    return table_of(response["claims"], ("id", "family", "statement", "verdict", "source"))


def evidence_table(response: dict[str, Any]) -> Rows:
    """One row per number of the evidence, after the verdicts."""
    measures = response["evidence"]["measures"] if response["evidence"] else []
    return [
        ["name", "value", "low", "high"],
        ["declared", response["verdict"], "", ""],
        ["found", response["found"] or "", "", ""],
        *([m["name"], m["value"], m["low"], m["high"]] for m in measures),
    ]


def claims_figure(response: dict[str, Any]) -> "Figure":
    """The picture of the open claim, or how many claims have which verdict."""
    if response["open"]:
        return evidence_figure(response["open"])
    counts = Counter(claim["verdict"] for claim in response["claims"])
    return draw_chart(Bars({name: counts[name] for name in get_args(Verdict)}, y_label="claims"))


def evidence_figure(response: dict[str, Any]) -> "Figure":
    """The picture of the evidence."""
    if not response["evidence"]:
        raise ConfigError(f"claim: needs one that was run, got {response['id']}; try claims.run")
    evidence = result_from_dict(response).evidence
    assert evidence is not None
    return draw_chart(evidence.chart, f"{response['id']}: {LABELS[response['found']]}")


def _related(request: ClaimsRequest, response: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The claim that the page opens: the requested one, or the first of the list."""
    name = request.claim or next((claim["id"] for claim in response["claims"]), None)
    return [] if name is None else [("claims.one", {"claim": name})]


@query(
    "claims",
    ClaimsRequest,
    table=claims_table,
    figure=claims_figure,
    related=_related,
    is_cached=False,
)
def answer_claims(explorer: Explorer, request: ClaimsRequest, job: Job) -> dict[str, Any]:
    """The claims of a family, a verdict or a search, and one of them in detail."""
    known: list[Claim] = select_claims([])
    for name, choices in {"family": FAMILIES, "verdict": get_args(Verdict)}.items():
        if (value := getattr(request, name)) is not None:
            check_choice(name, value, choices)
    matching = [claim for claim in known if _matches(claim, request)]
    question = request.search or ""
    near = find_answers(question, 8, claim_answers()) if question else []
    if not matching and request.family is request.verdict is None:  # a question, not a filter
        matching = [CLAIMS[one.claims[0]] for score, one in near if score >= MIN_CLAIM_SCORE]
    written = find_answers(question, 1) if len(question.split()) > 1 else []
    families, verdicts = Counter(c.id[0] for c in known), Counter(c.verdict for c in known)
    summary = ("id", "family", "statement", "verdict", "source", "trained")
    return {
        "claims": [{name: getattr(claim, name) for name in summary} for claim in matching],
        "total": len(known),
        "families": [{"letter": x, "title": FAMILIES[x], "count": families[x]} for x in families],
        "verdicts": [
            {"name": x, "label": LABELS[x], "count": verdicts[x]} for x in get_args(Verdict)
        ],
        # none where no written answer shares enough words with the question
        "answer": next((x._asdict() for score, x in written if score >= MIN_SCORE), None),
        "open": None if request.claim is None else _details(_known(request.claim, job)),
    }


@query("claims.one", ClaimRequest, table=evidence_table, figure=evidence_figure, is_cached=False)
def answer_claims_one(explorer: Explorer, request: ClaimRequest, job: Job) -> dict[str, Any]:
    """A claim with its evidence; one that trains models has evidence only if it was run before."""
    return _details(_known(request.claim, job))


@query("claims.run", ClaimRequest, table=evidence_table, figure=evidence_figure, is_cached=False)
def answer_claims_run(explorer: Explorer, request: ClaimRequest, job: Job) -> dict[str, Any]:
    """Run the fast version of a claim's experiment now."""
    return _details(_run(_find(request.claim), job))


# ---- selection


def _matches(claim: Claim, request: ClaimsRequest) -> bool:
    if request.family not in (None, claim.id[0]) or request.verdict not in (None, claim.verdict):
        return False
    texts = (claim.id, claim.statement, claim.condition, claim.correction, claim.remark)
    text = " ".join(texts).lower()
    return all(word in text for word in (request.search or "").lower().split())


def _find(name: str) -> Claim:
    if name.upper() not in CLAIMS:
        near = suggestion(name.upper(), CLAIMS)
        raise ConfigError(f"claim: needs an id such as A1, got {name!r}{near}")
    return CLAIMS[name.upper()]


# ---- running


def _known(name: str, job: Job) -> Result:
    """What is stored of a claim; quick ones are run if nothing is."""
    claim = _find(name)
    if claim.experiment is None:
        return Result(id=claim.id)
    stored = load_cached(claim.id, Trial())
    if stored is None and not claim.trained:
        return _run(claim, job)
    return stored or Result(id=claim.id)


def _run(claim: Claim, job: Job) -> Result:
    with _reporting(job, claim):
        [result] = run_claims([claim], use_cache=False)
    job.check()  # a cancelled experiment ends as one that failed
    return result


@contextmanager
def _reporting(job: Job, claim: Claim) -> Iterator[None]:
    """Check and report at each forward pass of a module in this thread.

    How far an experiment is cannot be known; the bar shows the share of its typical time.
    """
    start, thread, typical = time.monotonic(), threading.get_ident(), TYPICAL_SECONDS[claim.trained]
    calls, last = 0, start

    def report(*_: Any) -> None:
        nonlocal calls, last
        if threading.get_ident() != thread:
            return
        calls += 1
        now = time.monotonic()
        if now - last > 0.1:
            last, seconds = now, now - start
            text = f"running {claim.id}: {seconds:.0f} s, {counted(calls, 'call')} of layers"
            job.report(seconds / (seconds + typical), text)

    job.report(0.0, f"running {claim.id}")
    hook = register_module_forward_pre_hook(report)
    try:
        yield
    finally:
        hook.remove()


# ---- responses


def _details(result: Result) -> dict[str, Any]:
    claim, evidence = result.claim, result.evidence
    return _as_json(result.to_dict()) | {
        "family": claim.family,
        "code": claim.code,
        "can_run": claim.experiment is not None,
        "labels": {str(name): label for name, label in LABELS.items()},
        "picture": describe_chart(evidence.chart) if evidence else "",
    }


def _as_json(x: Any) -> Any:
    """JSON has no infinity and no NaN."""
    if isinstance(x, float):
        return finite(x)
    if isinstance(x, dict):
        return {name: _as_json(value) for name, value in x.items()}
    return [_as_json(value) for value in x] if isinstance(x, list | tuple) else x
