"""The figures of the results are drawn from the JSON files beside them."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIGURES = sorted(
    file
    for file in (ROOT / "docs/results/figures").glob("*.json")
    if "panels" in json.loads(file.read_text())
)


@pytest.fixture(scope="module")
def drawing():
    spec = importlib.util.spec_from_file_location("drawing", ROOT / "benchmarks/results_figures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_interval_is_students_t(drawing):
    mean, half = drawing.interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert mean == 3
    assert half == pytest.approx(2.776 * 2.5**0.5 / 5**0.5)  # 4 degrees of freedom
    assert drawing.interval([7.0]) == (7.0, 0.0)


def test_seeds_become_a_mean_and_single_numbers_stay(drawing):
    assert drawing.points({"x": [1, 2], "y": [5.0, [1.0, 3.0]]}) == [
        (1, 5.0, 0.0),
        (2, 2.0, pytest.approx(12.706)),
    ]


@pytest.mark.parametrize("file", FIGURES, ids=lambda file: file.stem)
def test_every_figure_can_be_redrawn_and_names_its_lines(drawing, tmp_path, file):
    data = json.loads(file.read_text())
    copy = tmp_path / file.name
    copy.write_text(file.read_text())
    drawing.main([copy])
    new, old = copy.with_suffix(".svg").read_text(), file.with_suffix(".svg").read_text()
    for panel in data["panels"]:
        assert all(panel[name] in text for name in ("title", "x", "y") for text in (new, old))
        several = len(panel["lines"]) > 1
        assert all(
            line["name"] in text for line in panel["lines"] for text in (new, old) if several
        )
    assert file.stat().st_size < 4000


def test_every_figure_is_on_a_page():
    pages = "".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    assert FIGURES
    assert all(f"figures/{file.stem}.svg" in pages for file in FIGURES)
