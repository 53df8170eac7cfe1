"""What leaves the page: saved pictures with names and grounds, and prints."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image

pytestmark = pytest.mark.browser
SVG = "{http://www.w3.org/2000/svg}"


def save(page, name):
    page.get_by_role("button", name=re.compile("Save")).click()
    with page.expect_download() as download:
        page.get_by_role("menuitem", name=name).click()
    return Path(download.value.path())


def texts(root):
    return [x.text for x in root.findall(f"{SVG}text")]


def test_a_saved_picture_has_a_title_names_margins_and_a_legend(page, open_view):
    open_view("time", model="phrases-gru", text="3 days", to="de")
    root = ElementTree.fromstring(save(page, "Vector (SVG)").read_bytes())
    names = texts(root)
    assert names[0] == "Time · phrases-gru · 3 days"
    assert {"update gate z", "Unit 0", "How far back a gradient reaches"} <= {*names}
    assert "candidate" in names  # of the legend of Unit 0
    inner = [*root.findall(f"{SVG}svg"), *root.findall(f"{SVG}image")]
    assert all(float(x.get("x")) >= 20 for x in inner)
    width = float(root.get("width"))
    assert all(float(x.get("x")) + float(x.get("width")) <= width - 20 for x in inner)


def test_a_saved_overlay_has_the_colours_of_the_screen(page, open_view, tmp_path):
    open_view("image", model="glyphs", sample=1)
    map_ = page.locator(".image-maps svg").nth(1)
    map_.screenshot(path=tmp_path / "screen.png")
    screen = Image.open(tmp_path / "screen.png").convert("RGB")
    root = ElementTree.fromstring(save(page, "Vector (SVG)").read_bytes())
    top = [
        x for x in root.findall(f"{SVG}svg") if x.get("viewBox") == map_.get_attribute("viewBox")
    ]
    picture = Image.open(save(page, "Picture (PNG)")).convert("RGB")
    left, up = 2 * float(top[1].get("x")), 2 * float(top[1].get("y"))
    for x, y in ((6, 6), (100, 100), (220, 220)):  # corner, middle, corner
        saved = picture.getpixel((int(left + 2 * x), int(up + 2 * y)))
        shown = screen.getpixel((x, y))
        assert max(abs(a - b) for a, b in zip(saved, shown, strict=True)) < 16


def test_pictures_are_offered_where_there_are_some(page, open_view):
    open_view("work")
    page.get_by_role("button", name="Save").click()
    assert page.get_by_role("menuitem", name="Copy link").count() == 1
    assert page.get_by_role("menuitem", name="Picture (PNG)").count() == 0


def test_the_menu_is_used_with_arrow_keys(page, open_view):
    open_view("cost")
    button = page.get_by_role("button", name="Save")
    button.focus()
    focused = "document.activeElement.textContent"
    page.keyboard.press("ArrowDown")
    page.wait_for_function(f"{focused} === 'Copy link'")
    page.keyboard.press("ArrowDown")
    assert page.evaluate(focused) == "Picture (PNG)"
    page.keyboard.press("End")
    assert page.evaluate(focused) == "Offline page (HTML)"
    page.keyboard.press("ArrowDown")
    assert page.evaluate(focused) == "Copy link"
    page.keyboard.press("ArrowUp")
    assert page.evaluate(focused) == "Offline page (HTML)"
    page.keyboard.press("Escape")
    assert page.get_by_role("menu").count() == 0
    assert page.evaluate(focused).startswith("Save")
