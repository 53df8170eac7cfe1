"""The runs view: lists and curves of real runs, also of one that is still being written."""

import json
import os
import shutil
import threading
import time

import pytest

from regard.errors import ConfigError
from regard.runs import find_run, fit, list_runs
from regard.runs.lock import is_locked, lock_folder
from regard.runs.settings import override_settings
from regard.tasks import recipe
from regard.train.metrics import append_metrics, read_metrics
from regard.web.explorer.catalog import Catalog
from regard.web.explorer.explorer import Explorer, find_query
from regard.web.explorer.views.runs import MAX_POINTS, curve
from regard.web.jobs import Job

SMALL = [
    *("languages=en,de", "kinds=duration", "vocab_texts=300", "valid_size=4", "test_size=6"),
    *("max_new_tokens=6", "device=cpu", "dim=16", "heads=2", "layers=1", "decoder_layers=1"),
    *("ffn_dim=16", "steps=12", "batch_tokens=256", "warmup=2", "log_every=1", "evaluate_every=6"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two runs: one finished, and one that stopped after its first lines, with another setting."""
    folder = tmp_path_factory.mktemp("all") / "runs"
    folder.mkdir()
    fit(override_settings(recipe("phrases"), SMALL), folder / "first")
    shutil.copytree(folder / "first", folder / "second")
    second = folder / "second"
    (second / "result.json").unlink()
    changed = json.loads((second / "recipe.json").read_text())
    changed["recipe"]["train"]["lr"] = 0.5
    (second / "recipe.json").write_text(json.dumps(changed))
    return folder


@pytest.fixture(scope="module")
def explorer(folder):
    return Explorer(Catalog((), [folder]))


def test_rows_are_those_of_list_runs(explorer, folder):
    answer = explorer.answer("runs", {})
    rows = {row["run"]: row for row in list_runs(folder)}
    assert {row["run"] for row in answer["runs"]} == set(rows) == {"first", "second"}
    for row in answer["runs"]:
        direct = rows[row["run"]]
        assert row["scores"] == {k: float(x) for k, x in direct["scores"].items()}
        assert (row["step"], row["steps"]) == (direct["step"], 12)
    states = {row["run"]: row["state"] for row in answer["runs"]}
    assert states["second"] == "not finished"
    assert states["first"] != "not finished"


def test_curves_are_the_lines_of_the_metrics(explorer, folder):
    answer = explorer.answer("runs", {"runs": "runs/first", "metrics": "loss,lr"})
    lines = [x for x in read_metrics(folder / "first") if "loss" in x]
    [loss, rate] = answer["charts"]
    assert loss["metric"] == "loss"
    [one] = loss["curves"]
    assert one["x"] == [x["step"] for x in lines]
    assert one["y"] == [x["loss"] for x in lines]
    assert rate["metric"] == "lr"


def test_settings_that_differ_are_listed(explorer):
    rows = {row["run"]: row["differs"] for row in explorer.answer("runs", {})["runs"]}
    [name] = [name for name in rows["first"] if name.endswith("lr")]
    assert rows["second"][name] == "0.5"
    assert rows["first"][name] != "0.5"


def test_a_run_opens_in_the_views_of_what_it_reads(explorer):
    rows = explorer.answer("runs", {})["runs"]
    assert {tuple(row["views"]) for row in rows} == {("text", "what-if", "atlas")}
    assert all(row["name"] in explorer.catalog.entries for row in rows)


def test_smoothing_is_an_exponential_mean_without_bias():
    lines = [{"step": n, "loss": y} for n, y in enumerate([4.0, 1.0, 1.0])]
    # weights of the third: (1, 2, 4) / 7
    assert curve(lines, "loss", 0.5)["y"] == pytest.approx([4.0, 2.0, 10 / 7])
    assert curve(lines, "loss")["y"] == [4.0, 1.0, 1.0]


def test_numbers_that_are_none_leave_a_gap():
    lines = [{"step": 1, "loss": 1.0}, {"step": 2, "loss": float("nan")}, {"step": 3, "loss": 3.0}]
    assert curve(lines, "loss") == {"x": [1, 2, 3], "y": [1.0, None, 3.0]}


def test_long_curves_are_thinned_and_keep_their_ends():
    lines = [{"step": n, "loss": float(n)} for n in range(10_001)]
    thin = curve(lines, "loss")
    assert len(thin["x"]) == MAX_POINTS
    assert (thin["x"][0], thin["x"][-1]) == (0, 10_000)


def test_runs_of_one_name_in_two_folders_are_both_served(tmp_path):
    for name in ("a", "b"):
        shutil.copytree(find_run("morse"), tmp_path / name / "run")
    catalog = Catalog([tmp_path / "a/run", tmp_path / "b/run"])
    assert [entry.name for entry in catalog.named] == ["run", "b/run"]
    assert catalog.run("b/run").folder == tmp_path / "b/run"
    with pytest.raises(ConfigError, match="names: need to differ, got 'b/run' twice; try renaming"):
        catalog.add(tmp_path / "b/run")


def test_the_stamp_changes_only_with_the_files(explorer, folder):
    first = explorer.answer("runs.stamp", {})
    assert explorer.answer("runs.stamp", {}) == first
    append_metrics(folder / "second", {"step": 13, "seconds": 9.0, "loss": 1.0})
    assert explorer.answer("runs.stamp", {}) != first
    assert explorer.answer("runs", {})["stamp"] == explorer.answer("runs.stamp", {})["stamp"]


def test_a_run_is_followed_while_it_is_written(tmp_path):
    place = tmp_path / "runs"  # need not exist when the server starts
    explorer = Explorer(Catalog((), [place]))
    assert explorer.answer("runs", {})["runs"] == []
    settings = override_settings(recipe("phrases"), [*SMALL, "steps=60", "evaluate_every=60"])
    thread = threading.Thread(target=fit, args=(settings, place / "live"))
    thread.start()
    seen = []
    while thread.is_alive():
        answer = explorer.answer("runs", {})
        if answer["runs"] and answer["charts"]:
            seen.append((answer["runs"][0]["state"], len(answer["charts"][0]["curves"][0]["x"])))
        time.sleep(0.02)
    thread.join()
    counts = [count for state, count in seen if state == "training"]
    assert counts
    assert counts == sorted(counts)
    assert len(set(counts)) > 1  # it grew while it was watched
    [row] = explorer.answer("runs", {})["runs"]
    assert row["step"] == 60
    assert row["state"] not in ("training", "not finished")


def test_a_lock_that_a_killed_process_left_is_none(tmp_path):
    with lock_folder(tmp_path):
        assert is_locked(tmp_path)
        holder = (tmp_path / ".lock").read_text()
    assert not is_locked(tmp_path)
    (tmp_path / ".lock").write_text(holder.replace(str(os.getpid()), "999999999"))
    assert not is_locked(tmp_path)


def test_damaged_runs_and_links_out_of_the_folder_do_no_harm(tmp_path, folder):
    place = tmp_path / "runs"
    (place / "bad").mkdir(parents=True)
    (place / "bad" / "recipe.json").write_text("{")
    (place / "link").symlink_to(folder / "first")
    answer = Explorer(Catalog((), [place])).answer("runs", {})
    assert [row["name"] for row in answer["runs"]] == ["runs/bad"]
    assert str(tmp_path) not in json.dumps(answer["runs"])
    assert answer["runs"][0]["views"] == []


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"runs": "runs/frist"}, "runs: needs .*got 'runs/frist'; try runs/first"),
        ({"runs": "../first"}, "runs: needs runs/"),
        ({"smooth": 1.0}, "smooth: needs to be valid: input should be less than or equal to 0.99"),
    ],
)
def test_mistakes_are_named(explorer, body, text):
    with pytest.raises(ConfigError, match=text):
        explorer.answer("runs", body)


def test_table_and_figure_hold_the_curves(explorer):
    body = {"runs": "runs/first", "metrics": "loss"}
    rows = explorer.csv(find_query("runs"), body, Job()).splitlines()
    answer = explorer.answer("runs", body)
    [one] = answer["charts"][0]["curves"]
    assert rows[0] == "metric,run,step,value"
    assert len(rows) == 1 + len(one["x"])
    figure = find_query("runs").figure
    assert figure is not None
    [axes] = figure(answer).axes
    assert axes.lines[0].get_ydata().tolist() == one["y"]
