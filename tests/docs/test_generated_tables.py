"""The tables of edits and of statistics are those of the registries."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("make_tables", ROOT / "docs/make_tables.py")
assert spec
assert spec.loader
make_tables = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make_tables)


@pytest.mark.parametrize("name", make_tables.TABLES)
def test_a_page_has_the_table_of_what_is_registered(name):
    path, _ = make_tables.TABLES[name]
    assert path.read_text() == make_tables.page(name), "run python docs/make_tables.py"


def test_a_row_has_parameters_range_and_formula():
    row = next(x for x in make_tables.edit_table().splitlines() if "scale_scores" in x)
    assert row.startswith("| `scale_scores(site, factor, heads=)` | Multiply all scores by")
    assert "| `factor` 0 to 4 (no effect: 1) | `Δh = Σ (w' - w) v" in row


def test_a_statistic_that_is_added_makes_its_page_stale(monkeypatch):
    entropy = make_tables.STATISTICS["entropy"]
    monkeypatch.setitem(make_tables.STATISTICS, "another", entropy)
    assert make_tables.page("statistics") != make_tables.TABLES["statistics"][0].read_text()
