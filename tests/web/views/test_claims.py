"""The claims view: what is listed, what is found, and how a run is stopped."""

import threading

import pytest
import torch
from torch import nn

from regard.claims import CLAIMS, Evidence, Lines, Measure, claim, run_claims, select_claims
from regard.errors import ConfigError
from regard.web.explorer.catalog import Catalog
from regard.web.explorer.explorer import Explorer, find_query
from regard.web.jobs import Cancelled, Job


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """A cache of their own, so that nothing was run before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def explorer():
    return Explorer(Catalog())


@pytest.fixture
def trained():
    """A claim that trains for a long time, and is not run unasked."""

    @claim("Z77", source="exam", verdict="true", trained=True)
    def often(trial):
        """Layers can be called often.

        Refutation: an error
        """
        layer, x = nn.Linear(2, 2), torch.zeros(1, 2)
        with torch.no_grad():
            for _ in range(200_000 if long.is_set() else 100):
                x = layer(x)
        chart = Lines([1, 2], {"a": [1.0, float("nan")]}, x_label="x", y_label="y")
        return Evidence(holds=True, measures=[Measure("calls", float("inf"))], chart=chart)

    long = threading.Event()
    yield long
    CLAIMS.pop("Z77")


def test_all_claims_are_listed_in_the_order_of_the_library(explorer):
    answer = explorer.answer("claims", {})
    assert [x["id"] for x in answer["claims"]] == [x.id for x in select_claims([])]
    assert sum(x["count"] for x in answer["families"]) == answer["total"] == len(answer["claims"])
    assert sum(x["count"] for x in answer["verdicts"]) == answer["total"]


def test_filters_add_up(explorer):
    answer = explorer.answer("claims", {"family": "I", "verdict": "false", "search": "LSTM"})
    expected = [
        x.id for x in select_claims(["I"])
        if x.verdict == "false" and "lstm" in f"{x.statement} {x.correction} {x.remark}".lower()
    ]  # fmt: skip
    assert expected
    assert [x["id"] for x in answer["claims"]] == expected


def test_words_of_a_search_may_stand_apart(explorer):
    found = explorer.answer("claims", {"search": "sum WEIGHTS"})["claims"]
    assert "A1" in [x["id"] for x in found]
    assert explorer.answer("claims", {"search": "no such words"})["claims"] == []


def test_a_quick_claim_comes_with_its_evidence(explorer):
    answer = explorer.answer("claims.one", {"claim": "a1"})
    [direct] = run_claims([CLAIMS["A1"]], use_cache=False)
    assert direct.evidence is not None
    assert answer["found"] == answer["verdict"] == direct.verdict
    values = [(m["name"], m["value"]) for m in answer["evidence"]["measures"]]
    assert values == [(m.name, m.value) for m in direct.evidence.measures]
    assert answer["evidence"]["chart"]["curves"] == direct.evidence.chart.curves  # type: ignore
    assert "def " in answer["code"]


def test_a_claim_of_the_literature_cannot_be_run(explorer):
    name = next(x.id for x in CLAIMS.values() if x.experiment is None)
    answer = explorer.answer("claims.one", {"claim": name})
    assert not answer["can_run"]
    assert answer["found"] == "literature"


def test_a_claim_that_trains_waits_to_be_asked(explorer, trained):
    assert explorer.answer("claims.one", {"claim": "Z77"})["evidence"] is None
    run = explorer.answer("claims.run", {"claim": "Z77"})
    assert run["found"] == "true"
    assert run["evidence"]["measures"][0]["value"] is None  # JSON has no infinity
    assert run["evidence"]["chart"]["curves"]["a"] == [1.0, None]
    assert explorer.answer("claims.one", {"claim": "Z77"})["cached"]


def test_a_run_reports_and_stops_when_it_is_cancelled(explorer, trained):
    trained.set()
    job = Job()
    threading.Timer(0.4, job.cancel).start()
    with pytest.raises(Cancelled):
        explorer.answer("claims.run", {"claim": "Z77"}, job)
    assert "calls of layers" in job.progress[1]
    assert not nn.modules.module._global_forward_pre_hooks


def test_a_trained_claim_runs_in_the_thread_of_a_worker(explorer):
    from regard.claims.measurements import train_model

    results = []

    def train():
        model = train_model(
            lambda: nn.Linear(1, 1),
            lambda rng: {"x": torch.rand(8, 1, generator=rng)},
            lambda model, batch: model(batch["x"]).square().mean(),
            steps=3,
            warmup=0,
        )
        results.append(model)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert results


@pytest.mark.parametrize(
    ("query", "body", "text"),
    [
        ("claims", {"family": "Q"}, "family: needs one of A, B"),
        ("claims", {"verdict": "flase"}, "try false"),
        ("claims.one", {"claim": "A111"}, "claim: needs an id such as A1, got 'A111'"),
        ("claims.run", {"claim": "../A1"}, "claim: needs an id"),
        ("claims", {"search": "x" * 201}, "at most 200 characters"),
    ],
)
def test_mistakes_are_named(explorer, query, body, text):
    with pytest.raises(ConfigError, match=text):
        explorer.answer(query, body)


def test_tables_hold_the_list_or_the_numbers(explorer):
    query = find_query("claims")
    rows = explorer.csv(query, {"family": "A"}, Job()).splitlines()
    assert len(rows) == 1 + len(select_claims(["A"]))
    rows = explorer.csv(query, {"claim": "A1"}, Job()).splitlines()
    assert rows[1:3] == ["declared,true,,", "found,true,,"]
    assert rows[3].startswith("largest |Σ weights − 1|,")


def test_figures_show_the_evidence_or_the_counts(explorer):
    figure = find_query("claims").figure
    assert figure is not None
    [axes] = figure(explorer.answer("claims", {"claim": "A1"})).axes
    assert [line.get_label() for line in axes.lines] == ["sum of the weights", "largest weight"]
    [axes] = figure(explorer.answer("claims", {})).axes
    assert sum(bar.get_height() for bar in axes.patches) == len(CLAIMS)
