"""Documents of the page: the report of a run, and a comparison."""

import math

import pytest

from regard.page import document
from regard.page.document import document_page

pytestmark = pytest.mark.browser
EVIL = "</script><img src=x onerror=\"document.title='owned'\">"
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010800000000"
    "3a7e9b550000000a49444154789c6360000000020001e221bc330000000049454e44ae426082"
)
SECTIONS = {
    "Scores": [
        document.text("On 2 examples."),
        document.tiles([("exact", "0.5", "0.1 to 0.9")]),
        document.table("On held-out data", ("score", "test"), [("exact", "0.5")], numbers=(1,)),
    ],
    "Curves": [
        document.chart("loss", {"train": [(1, 1e-5), (9, 1e3)]}, x_label="update", at=3, log=True),
        document.chart("lr", {"lr": [(1, 0.5), (2, 0.5)]}, x_label="update"),
    ],
    "Mistakes": [
        document.table(
            "Wrong",
            ("input", "output", "verdict"),
            [(document.picture(PNG, "a glyph"), EVIL, document.mark(False))],
        )
    ],
    "Confusions": [document.confusions(["a", EVIL], [[3, 1], [0, 2]])],
    "Attention": [document.heat_map(EVIL, ["q"], ["k", "l"], [[0.25, 0.75]])],
    "Differences": [
        document.tokens([("the", ""), ("old", "second only")]),
        document.heat_map("d", ["q"], ["k", "l"], [[-0.5, math.nan]], limit=0.5, signed=True),
    ],
    "Use": [document.code("regard look", EVIL), document.bullets(["one", "two"])],
    "Settings": [document.table("All", ("a", "b"), [("lr", "1")], fold=True)],
}


@pytest.fixture
def report(tmp_path):
    file = tmp_path / "report.html"
    file.write_text(document_page("A <run>", "Two sentences.", SECTIONS))
    return file.as_uri()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_report_draws_every_block_offline_and_is_accessible(new_page, report, theme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-core")
    page = new_page(offline=True, color_scheme=theme, viewport={"width": 390, "height": 844})
    page.goto(report)
    page.get_by_role("heading", name="A <run>", level=1).wait_for()
    assert page.title() == "A <run>"
    assert page.locator("h2").all_inner_texts() == [*SECTIONS]
    assert page.locator("figcaption", has_text="loss (logarithmic)").count() == 1
    assert page.locator(".chart svg.drawing path").count() == 2
    assert page.locator(".chart .mark").count() == 1
    assert page.locator(".heatmap").count() == 2
    assert page.locator(".confusions td[data-value='3'].hit").count() == 1
    assert page.locator("img[src=x]").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    violations = axe.Axe().run(page).response["violations"]
    assert [f"{x['id']}: {x['nodes'][0]['html'][:200]}" for x in violations] == []


def test_a_map_of_a_report_is_read_by_key(new_page, report):
    page = new_page(offline=True)
    page.goto(report)
    drawing = page.locator(".heatmap svg").first
    drawing.focus()
    drawing.press("ArrowRight")
    drawing.press("ArrowRight")
    assert "0.75" in page.locator(".heatmap .readout").first.inner_text()


def test_a_report_without_scripts_has_its_tables(new_page, report):
    page = new_page(offline=True, java_script_enabled=False)
    page.goto(report)
    text = page.locator("noscript").text_content() or ""
    assert "Pictures need JavaScript." in text
    assert "exact" in text


def test_a_printed_report_has_the_settings_that_are_folded_on_screen(new_page, report):
    page = new_page(offline=True)
    page.goto(report)
    cell = page.locator("details td", has_text="1")
    page.wait_for_selector("details")
    assert not cell.is_visible()
    page.emulate_media(media="print")
    assert cell.is_visible()
    assert not page.locator(".bar").is_visible()
