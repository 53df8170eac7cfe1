"""What the first minute costs: weight, layout shifts, first picture; and its smallest label."""

import time

import pytest

from browser.conftest import settle
from browser.test_access import CUT
from browser.test_shell import VIEWS
from regard.page import FOLDER

pytestmark = pytest.mark.browser
MAX_WEIGHT = 400_000  # bytes of all files of the page
MAX_SHIFT = 0.1  # the limit that web.dev calls good
FIRST_PICTURE = 1  # seconds on the machine itself
ON_A_SLOW_LINE = 4  # seconds with 400 ms before each response and 50 kB/s
SLOW_LINE = {"offline": False, "latency": 400} | dict.fromkeys(
    ("downloadThroughput", "uploadThroughput"), 50_000
)
MAX_REQUESTS, MAX_SENT = 8, 90_000  # until the first picture; bytes as sent
SHIFTS = """new PerformanceObserver((list) => {
  const moved = list.getEntries().filter((x) => !x.hadRecentInput);
  for (const x of moved) window.shift = (window.shift ?? 0) + x.value;
}).observe({ type: 'layout-shift', buffered: true })"""
SMALL = """() => {
  const between = (size) => size > 0 && size < 12;
  const seen = [...document.querySelectorAll('body *')].filter((x) => x.getClientRects().length
    && [...x.childNodes].some((n) => n.nodeType === 3 && n.data.trim()));
  return seen
  .filter((x) => between(parseFloat(getComputedStyle(x).fontSize)) && !x.closest('math'))
  .map((x) => `${getComputedStyle(x).fontSize} ${x.outerHTML.slice(0, 90)}`); }"""


def test_all_files_of_the_page_together_are_light():
    files = [x for x in FOLDER.rglob("*") if x.suffix in (".js", ".css", ".html", ".svg")]
    assert 100_000 < sum(x.stat().st_size for x in files) < MAX_WEIGHT


def first_picture(page, line=None):
    """Seconds until the first map is there, the requests until then, and the bytes of them."""
    network, requests, sent = page.context.new_cdp_session(page), [], []
    network.send("Network.enable")
    network.send("Network.setCacheDisabled", {"cacheDisabled": True})
    if line:
        network.send("Network.emulateNetworkConditions", line)
    network.on("Network.requestWillBeSent", lambda x: requests.append(x["request"]["url"]))
    network.on("Network.loadingFinished", lambda x: sent.append(x["encodedDataLength"]))
    begin = time.monotonic()
    page.goto("/")
    page.locator(".text-detail .heatmap svg rect").first.wait_for()
    return time.monotonic() - begin, requests, sum(sent)


def test_the_first_picture_needs_few_requests_and_comes_soon_on_a_slow_line_too(new_page):
    """The best of some tries: what another process takes from the cores is not the page's."""
    here, away = [], []
    for _ in range(5):
        here.append(first_picture(new_page())[0])
        seconds, requests, sent = first_picture(new_page(), SLOW_LINE)
        away.append(seconds)
        assert 4 < len(requests) <= MAX_REQUESTS, requests
        assert 30_000 < sent < MAX_SENT
        if min(here) < FIRST_PICTURE and min(away) < ON_A_SLOW_LINE:
            return
    assert min(here) < FIRST_PICTURE
    assert min(away) < ON_A_SLOW_LINE


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_hardly_shifts_and_writes_nothing_smaller_than_12_px_or_cut_off(new_page, view):
    page = new_page(viewport={"width": 1366, "height": 768})
    page.add_init_script(SHIFTS)
    page.goto(f"/#/{view}")
    settle(page)
    assert page.evaluate("window.shift ?? 0") < MAX_SHIFT
    assert page.evaluate(SMALL) == []
    assert page.evaluate(CUT) == []


def test_present_enlarges_the_page_and_its_keys_choose_heads_and_examples(new_page):
    page = new_page(viewport={"width": 1920, "height": 1080})
    page.goto("/#/text?model=stories")
    settle(page)
    page.get_by_role("button", name="Present").click()
    settle(page)
    scaled = "document.querySelector('main').currentCSSZoom"
    assert page.evaluate(scaled) == 1.5
    size = "parseFloat(getComputedStyle(document.querySelector('.heatmap text')).fontSize)"
    assert page.evaluate(size) * 1.5 >= 16
    assert page.locator(".keys kbd").count() >= 6
    first = page.locator(".head-thumb[aria-pressed=true]").get_attribute("aria-label")
    page.locator("h2").first.click()
    page.keyboard.press("ArrowRight")
    settle(page)
    assert page.locator(".head-thumb[aria-pressed=true]").get_attribute("aria-label") != first
    page.keyboard.press("3")
    settle(page)
    assert "→ wind" in page.get_by_label("About to write").inner_text()
    # the pointer finds the cell that it is over, enlarged or not
    box = page.locator(".text-detail .heatmap svg rect").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert page.locator(".readout").inner_text().startswith("query Say (0), key Say (0)")
    page.keyboard.press("Escape")
    assert page.evaluate(scaled) == 1
