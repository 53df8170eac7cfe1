"""The atlas in a browser: moved by mouse and keys, restored by link, numbers of the API."""

import json

import pytest

pytestmark = pytest.mark.browser

TEXT = "def main(argv):\n    parser = argparse."
MAP = "canvas.atlas-map"
GUTTER = 82  # of rulers and margins


def params(page):
    query = page.evaluate("location.hash").partition("?")[2]
    return dict(page.evaluate("q => [...new URLSearchParams(q)]", query))


def hover(page, x, y):
    """Point at a place of the map, in pixels from its corner; its readout, and the number."""
    box = page.locator(MAP).bounding_box()
    page.mouse.move(box["x"] + GUTTER + x, box["y"] + GUTTER + y)
    page.wait_for_selector(".readout[data-value]:not([data-value=''])")
    readout = page.locator(".readout[data-value]")
    return readout.inner_text(), float(readout.get_attribute("data-value"))


def select(page, label):
    return page.locator(f"label:has(> span:text-is('{label}')) select")


def wait_for_tiles(page):
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(150)  # two frames


def test_the_number_under_the_pointer_is_that_of_the_api(page, open_view, explorer):
    open_view("atlas", model="stdlib", text=TEXT, site="decoder.1.self", head=2)
    page.wait_for_selector(MAP)
    wait_for_tiles(page)
    text, value = hover(page, 2, 250)
    query = int(text.split("query ")[1].split(" ")[0])
    assert "key 0 “def”" in text
    body = {"model": "stdlib", "text": TEXT, "site": "decoder.1.self", "head": 2}
    opened = explorer.answer("atlas", body)
    cell = explorer.answer("atlas.cell", {"id": opened["id"], "query": query, "key": 0})
    assert value == pytest.approx(cell["weight"], rel=1e-3)

    page.mouse.down()
    page.mouse.up()  # a click opens its arithmetic
    weight = page.locator("[data-name=weight]")
    assert float(weight.get_attribute("data-value")) == cell["weight"]
    assert page.get_by_role("link", name="Its arithmetic, step by step").is_visible()
    assert params(page)["query"] == str(query)


def test_a_long_map_is_zoomed_by_keys_and_restored_by_its_link(page, open_view):
    open_view("atlas", model="demo:16384")
    page.locator(MAP).focus()
    place = page.locator(".atlas-place")
    assert place.inner_text() == "Queries 0–16,383 of 16,384, keys 0–16,383 of 16,384"
    for _ in range(14):
        page.keyboard.press("+")
    page.keyboard.press("ArrowDown")
    page.wait_for_function("location.hash.includes('z=')")
    assert "query 8," in page.locator(".readout[data-value]").inner_text()
    before, state = place.inner_text(), params(page)
    page.reload()
    page.wait_for_selector(MAP)
    page.wait_for_function(
        "t => document.querySelector('.atlas-place').innerText === t", arg=before
    )
    assert params(page) == state
    page.locator(MAP).focus()
    page.keyboard.press("Home")
    page.wait_for_function("!location.hash.includes('z=')")
    assert place.inner_text().startswith("Queries 0–16,383")


def test_heads_are_switched_in_place_and_subtracted_without_loading_again(page, open_view):
    asked = []
    page.on("request", lambda r: "tiles?" in r.url and asked.append(r.url))
    open_view("atlas", model="demo:1024", x=300, y=400, z=3.5)
    wait_for_tiles(page)
    _, first = hover(page, 100, 100)
    select(page, "Head").select_option("1")
    page.wait_for_function("location.hash.includes('head=1')")
    wait_for_tiles(page)
    assert float(params(page)["x"]) == pytest.approx(300, abs=1)
    _, second = hover(page, 101, 101)
    select(page, "Head").select_option("0")
    wait_for_tiles(page)
    count = len(asked)
    select(page, "Minus head").select_option("synthetic/1")
    page.wait_for_selector("h2:has-text('minus near tokens')")
    wait_for_tiles(page)
    text, difference = hover(page, 100, 100)
    assert "difference of weight" in text
    assert difference == pytest.approx(first - second, rel=1e-6, abs=1e-9)
    page.get_by_label("Logarithmic").uncheck()
    page.get_by_label("Colour scale").check()
    wait_for_tiles(page)
    assert len(asked) == count  # both heads were loaded
    assert float(params(page)["max"]) > 0


def test_tokens_are_found_and_marked(page, open_view, explorer):
    open_view("atlas", model="demo:16384")
    box = page.get_by_role("searchbox")
    box.fill("#9000")
    box.press("Enter")
    page.wait_for_function("location.hash.includes('z=')")
    assert float(params(page)["x"]) == pytest.approx(9000.5)
    box.fill("ba")
    box.press("Enter")
    page.wait_for_selector("text=/1 of .*, position/")
    opened = explorer.answer("atlas", {"model": "demo:16384"})
    found = explorer.answer("atlas.search", {"id": opened["id"], "text": "ba"})
    text = page.locator(".atlas-search .readout").inner_text()
    assert text == f"1 of {found['count']:,}, position {found['positions'][0]:,}"


def test_a_map_that_the_server_has_closed_is_opened_again(page, open_view, explorer):
    open_view("atlas", model="demo:1024", x=300, y=400, z=3.5)
    explorer.maps._maps.clear()
    page.get_by_role("button", name="largest").click()
    wait_for_tiles(page)
    page.wait_for_timeout(300)
    assert len(explorer.maps) == 1
    assert page.locator(".error").count() == 0
    assert hover(page, 50, 50)[1] >= 0


def test_a_text_file_is_read(page, open_view, tmp_path):
    file = tmp_path / "program.py"
    file.write_text(TEXT * 30)
    open_view("atlas", model="stdlib")
    page.locator("input[type=file]").set_input_files(file)
    page.wait_for_function("location.hash.includes('file=')")
    page.wait_for_function("/of [23]\\d\\d/.test(document.querySelector('.atlas-place').innerText)")
    assert page.get_by_role("textbox", name="Text").input_value() == "program.py"


def test_the_view_fits_a_phone_and_pans_by_touch_and_buttons(new_page):
    page = new_page(viewport={"width": 390, "height": 800})
    page.goto("/#/atlas?model=demo:16384")
    page.wait_for_selector(MAP)
    wait_for_tiles(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.get_by_role("button", name="Zoom in").click()
    page.wait_for_function("location.hash.includes('z=')")
    x = float(params(page)["x"])
    box = page.locator(MAP).bounding_box()
    page.mouse.move(box["x"] + 250, box["y"] + 200)
    page.mouse.down()
    page.mouse.move(box["x"] + 200, box["y"] + 200)
    page.mouse.up()
    page.wait_for_function(
        f"Number(new URLSearchParams(location.hash.split('?')[1]).get('x')) > {x}"
    )


def test_the_canvas_has_a_name_and_the_controls_have_labels(page, open_view):
    open_view("atlas", model="demo:1024")
    canvas = page.get_by_role("application")
    assert "1,024 queries by 1,024 keys" in canvas.get_attribute("aria-label")
    nameless = page.evaluate(
        "[...document.querySelectorAll('main select, main input, main textarea')]"
        ".filter((x) => !x.labels?.length && !x.ariaLabel).length"
    )
    assert nameless == 0
    assert json.loads(page.evaluate("JSON.stringify(document.title)")) == "Atlas · Regard"


def test_a_saved_page_shows_the_whole_map(page, explorer, tmp_path):
    from regard.web.explorer.view_file import write_view

    file = write_view(explorer, "atlas", {"model": "demo:300"}, tmp_path / "map.html")
    page.goto(file.as_uri())
    page.wait_for_selector(MAP)
    page.wait_for_timeout(300)
    assert hover(page, 5, 200)[1] > 0
