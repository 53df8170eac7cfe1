"""For every reader: edges and targets that can be seen and met, high contrast, paper, a finger."""

import re

import pytest

from browser.conftest import settle
from regard.page import FOLDER

pytestmark = pytest.mark.browser
VIEWS = re.findall(r"^  \"?([a-z-]+)\"?: \[\"", (FOLDER / "app.js").read_text(), re.MULTILINE)
THEME = "if (location.protocol === 'http:') localStorage.setItem('theme', '{}')"
PHRASE = {"model": "phrases", "text": "3 days", "to": "de"}
EDGES = """() => {
  const light = (c) => { const v = c.match(/[\\d.]+/g).slice(0, 3).map((x) => x / 255)
    .map((x) => (x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4));
    return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2]; };
  return [...document.querySelectorAll(
    'main :is(select, textarea, input[type=text], input[type=number])')]
    .filter((x) => x.getClientRects().length).map((x) => {
      const ground = getComputedStyle(x.closest('.panel') ?? document.body).backgroundColor;
      const [a, b] = [getComputedStyle(x).borderTopColor, ground].map(light);
      return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), x.outerHTML.slice(0, 80)]; })
    .filter(([ratio]) => ratio < 3);
}"""
CUT = """() => [...document.querySelectorAll('.choice button, .row > button')]
  .map((x) => [x, document.createRange()]).filter(([x, text]) => { text.selectNodeContents(x);
    return text.getBoundingClientRect().right > x.getBoundingClientRect().right - 3; })
  .map(([x]) => x.textContent)"""
SMALL = """() => [...document.querySelectorAll('button, select, summary, input, nav a')]
  .filter((x) => x.getClientRects().length)
  .filter((x) => !x.matches('.term, .link, .hidden, input[type=checkbox]'))
  .filter((x) => !x.closest('p, li, th'))
  .map((x) => [x.getBoundingClientRect(), x.outerHTML.slice(0, 100)])
  .filter(([b]) => Math.min(b.width, b.height) < 23.5)
  .map(([b, html]) => [b.width, b.height, html])"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_edges_of_controls_are_seen(page, open_view, theme):
    page.add_init_script(THEME.format(theme))
    open_view("what-if", **PHRASE)
    assert page.evaluate(EDGES) == []


@pytest.mark.parametrize("view", VIEWS)
def test_targets_have_24_pixels_on_a_phone(new_page, view):
    page = new_page(viewport={"width": 390, "height": 844}, has_touch=True)
    page.goto(f"/#/{view}")
    settle(page)
    assert page.evaluate(SMALL) == []
    assert page.evaluate(CUT) == []


def test_forced_colours_show_what_is_chosen(new_page):
    page = new_page(forced_colors="active")
    page.goto(
        "/#/what-if?model=phrases&text=3 days&to=de&edits=drop_head('encoder.0.self', heads=[2])"
    )
    settle(page)
    ground = "getComputedStyle(document.querySelector('{}')).backgroundColor"
    on = page.evaluate(ground.format(".head-row [aria-pressed=true]"))
    assert on != page.evaluate(ground.format(".head-row [aria-pressed=false]"))
    assert page.evaluate(ground.format("nav [aria-current]")) != page.evaluate(
        ground.format("nav a")
    )


def test_paper_has_the_bars_and_what_is_chosen(page, open_view):
    open_view("what-if", **PHRASE)
    page.emulate_media(media="print")
    adjust = "getComputedStyle(document.querySelector('{}')).printColorAdjust"
    for name in ("svg.bars .before", "[aria-pressed=true]", "tr.on"):
        assert page.evaluate(adjust.format(name)) == "exact"
    controls = page.locator(".controls")
    assert controls.evaluate("(x) => getComputedStyle(x).maxHeight") == "none"


def test_one_finger_scrolls_past_the_atlas(new_page):
    page = new_page(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page.goto("/#/atlas?model=demo:1024")
    settle(page)
    touch = page.locator("canvas.atlas-map").evaluate("(x) => getComputedStyle(x).touchAction")
    assert touch == "pan-y"


def test_the_first_curves_differ_by_more_than_their_colour(page, open_view):
    open_view("time", model="phrases-gru", text="3 days", to="de")
    dashes = (
        page.locator(".chart")
        .first.locator(".legend line")
        .evaluate_all("(all) => all.map((x) => x.getAttribute('stroke-dasharray'))")
    )
    assert len(dashes) == len(set(dashes)) >= 4


def test_what_is_sent_is_compressed(page, open_view):
    answers = []
    page.on("response", lambda x: answers.append(x))
    open_view("text", **PHRASE)
    large = {x.url.rpartition("/")[2]: x for x in answers if len(x.body()) > 5000}
    assert {"app.js", "app.css", "text"} <= large.keys()
    assert {x.headers.get("content-encoding") for x in large.values()} == {"gzip"}
