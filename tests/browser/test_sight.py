"""The page of `regard look`: one sight, offline."""

import re

import pytest
import torch

from regard.inspection import Sight, make_site, write_report
from regard.inspection.report.report import Predictions
from regard.ops import Causal

pytestmark = pytest.mark.browser
EVIL = "<img src=x onerror=\"document.title='owned'\"></script>"


def sight_of(count, heads=2, layers=2):
    tokens = [EVIL, *(f"w{i}" for i in range(1, count))]
    return Sight(
        [
            make_site(
                *torch.randn(2, 1, heads, count, 8) * 1.7,
                tokens=tokens,
                name=f"decoder.{layer}.self",
                mask=Causal(),
            )
            for layer in range(layers)
        ],
        skipped={"other": EVIL},
    )


def opened(new_page, path, **options):
    page = new_page(offline=True, **options)
    page.goto(path.as_uri())
    page.get_by_role("heading", level=1).wait_for()
    page.wait_for_selector(".grid-of-heads")
    return page


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_sight_is_accessible_fits_a_phone_and_text_stays_text(new_page, tmp_path, theme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-core")
    predictions = Predictions("next token", [[(EVIL, 0.75), ("b", 0.25)]] * 6)
    path = write_report(
        sight_of(6),
        tmp_path / "page.html",
        title="A <b>",
        facts={"Input": EVIL},
        predictions=predictions,
    )
    page = opened(new_page, path, color_scheme=theme, viewport={"width": 390, "height": 844})
    assert page.title() == "A <b>"
    assert page.locator("img[src=x]").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    violations = axe.Axe().run(page).response["violations"]
    assert [f"{x['id']}: {x['nodes'][0]['html'][:200]}" for x in violations] == []


def test_the_table_sorts_and_leads_to_a_head(new_page, tmp_path):
    sight = sight_of(8)
    page = opened(new_page, write_report(sight, tmp_path / "page.html"))
    page.get_by_role("button", name="peak").click()
    rows = page.locator(".head-table tbody tr")
    names = page.locator(".head-table thead th").all_inner_texts()
    column = next(n for n, name in enumerate(names) if name.startswith("peak"))
    values = [float(rows.nth(n).locator("th, td").nth(column).inner_text()) for n in range(4)]
    assert values == sorted(values, reverse=True)
    page.get_by_role("button", name="decoder.1.self, head 1").click()
    assert "decoder.1.self" in page.locator("#head h2").inner_text()
    want = sight["decoder.1.self"].weights()[0, 1, 7].topk(5)
    shown = re.findall(r"\((\d+)\) (\d\.\d{4})", page.locator(".attended").inner_text())
    assert [int(key) for key, _ in shown] == want.indices.tolist()
    assert [float(x) for _, x in shown] == pytest.approx(want.values.tolist(), abs=1e-4)


def test_the_keyboard_reads_zooms_and_returns(new_page, tmp_path):
    sight = sight_of(600)
    page = opened(new_page, write_report(sight, tmp_path / "page.html"))
    drawing = page.locator("#head .heatmap svg").first
    drawing.focus()
    drawing.press("ArrowDown")
    readout = page.locator("#head .heatmap .readout")
    assert re.match(r"query \d+–\d+ \(w\d+ …\), key 0–\d+", readout.inner_text())
    drawing.press("Enter")
    page.wait_for_selector("#head .chips button[aria-pressed='true']:has-text('queries')")
    drawing = page.locator("#head .heatmap svg").first
    drawing.focus()
    drawing.press("ArrowDown")
    numbers = re.findall(r"\((\d+)\)", readout.inner_text())
    query, key = map(int, numbers)
    weight = float(readout.inner_text().rpartition(" ")[2])
    want = sight["decoder.0.self"].weights()[0, 0, query, key]
    assert weight == pytest.approx(float(want), abs=2e-5)
    drawing.press("Escape")
    page.wait_for_selector("#head .chips button[aria-pressed='true']:has-text('whole map')")


def test_the_maps_of_a_model_of_many_layers_stay_on_a_screen_or_two(new_page, tmp_path):
    path = write_report(sight_of(6, heads=9, layers=30), tmp_path / "page.html")
    page = opened(new_page, path, viewport={"width": 1366, "height": 768})
    grid = page.locator(".grid-of-heads")
    assert grid.locator(".head").count() == 270
    assert grid.bounding_box()["height"] < 1100
    assert grid.locator(".head .frame").first.bounding_box()["height"] >= 20


def test_the_row_of_a_single_query_over_many_keys_can_be_read(new_page, tmp_path):
    site = make_site(torch.randn(1, 2, 1, 8), torch.randn(1, 2, 900, 8), name="decoder.0.self")
    page = opened(new_page, write_report(Sight([site]), tmp_path / "page.html"))
    map_ = page.locator("#head .heatmap")
    cells = map_.locator("svg rect, svg image").first.bounding_box()
    assert cells["height"] >= 24
    # its last column can be reached: nothing is cut off
    scroll, shown = map_.evaluate("(x) => [x.scrollWidth, x.querySelector('svg').clientWidth]")
    assert scroll >= shown > 900
