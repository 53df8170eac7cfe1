"""The runs view in a browser, with a run that is being written."""

import json

import pytest

from regard.train.metrics import append_metrics

pytestmark = pytest.mark.browser


@pytest.fixture
def live(runs_folder):
    """A run of a known recipe whose metrics the test writes line by line."""
    import shutil

    from regard.runs.loading import find_run

    folder = runs_folder / "live"
    folder.mkdir()
    shutil.copy(find_run("phrases") / "recipe.json", folder / "recipe.json")
    for step in (1, 2, 3):
        append_metrics(
            folder, {"step": step, "seconds": float(step), "loss": 4.0 / step, "lr": 0.1}
        )
    yield folder
    shutil.rmtree(folder)


def test_without_runs_the_command_is_named(page, open_view):
    open_view("runs")
    assert "regard train phrases" in page.locator("main").inner_text()


def test_curves_grow_while_the_run_is_written(page, open_view, live, explorer):
    open_view("runs")
    chart = page.locator("[data-metric=loss]")
    assert chart.get_attribute("data-points") == "3"
    assert "no weights yet" in page.locator("table").first.inner_text()
    append_metrics(live, {"step": 4, "seconds": 4.0, "loss": 1.0, "lr": 0.1})
    page.wait_for_selector("[data-metric=loss][data-points='4']")  # by itself
    row = explorer.answer("runs", {})["runs"][0]
    shown = page.locator("td [data-value]").first.get_attribute("data-value")
    assert int(shown) == row["step"] == 4


def test_metrics_smoothing_and_axis_are_in_the_link(page, open_view, live, explorer):
    open_view("runs")
    page.get_by_role("button", name="lr", exact=True).click()
    page.wait_for_selector("[data-metric=lr]")
    page.get_by_role("slider", name="Smoothing").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_url("**smooth=0.02**")
    page.get_by_label("Logarithmic axis").check()
    page.wait_for_url("**log=1**")
    page.reload()
    page.wait_for_selector("[data-metric=lr]")
    assert page.get_by_label("Logarithmic axis").is_checked()
    page.get_by_label("runs/live", exact=True).uncheck()
    page.get_by_text("Choose a run in the list").wait_for()


def test_settings_of_two_runs_are_compared(page, open_view, live, runs_folder):
    import shutil

    other = runs_folder / "other"
    shutil.copytree(live, other)
    recipe = json.loads((other / "recipe.json").read_text())
    recipe["recipe"]["train"]["lr"] = 0.123
    (other / "recipe.json").write_text(json.dumps(recipe))
    try:
        open_view("runs")
        assert "0.123" in page.get_by_role("region", name="Settings that differ").inner_text()
    finally:
        shutil.rmtree(other)


def test_the_view_fits_a_phone(new_page, live):
    page = new_page(viewport={"width": 390, "height": 800})
    page.goto("/#/runs")
    page.wait_for_selector("[data-metric]")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
