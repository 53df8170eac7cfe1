"""The image view: drawing, files, samples, patches and heads, by pointer, keyboard and link."""

import io

import pytest
from PIL import Image, ImageDraw, ImageFont

from tests.browser.conftest import settle

pytestmark = pytest.mark.browser


def answer_of(explorer, **body):
    return explorer.answer("image", {"model": "glyphs"} | body)


def shown_class(page):
    return page.inner_text(".verdict strong")


def test_the_first_thing_on_screen_is_a_finished_example(page, open_view, explorer):
    open_view("image")
    answer = answer_of(explorer)
    assert shown_class(page) == answer["classes"][0]["class"] == "M"
    value = page.get_attribute(".verdict strong", "data-value")
    assert float(value) == answer["classes"][0]["probability"]
    assert page.locator(".image-thumb").count() == 5 * (4 + 1)


def test_a_drawn_letter_is_classified(page, open_view):
    open_view("image")
    box = page.locator(".pad canvas").bounding_box()
    corners = [(0.35, 0.15), (0.35, 0.82), (0.75, 0.82)]  # an L
    places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in corners]
    page.mouse.move(*places[0])
    page.mouse.down()
    for place in places[1:]:
        page.mouse.move(*place, steps=8)
    page.mouse.up()
    page.wait_for_function("() => location.hash.includes('file=')")
    settle(page)
    page.wait_for_function("() => document.querySelector('.verdict strong').textContent === 'L'")


def test_a_chosen_file_is_classified_and_a_bad_one_is_one_sentence(page, open_view):
    open_view("image")
    image, file = Image.new("RGB", (80, 80), "white"), io.BytesIO()
    ImageDraw.Draw(image).text((20, 5), "7", "black", ImageFont.load_default(60))
    image.save(file, "PNG")
    content = {"name": "seven.png", "mimeType": "image/png", "buffer": file.getvalue()}
    page.set_input_files("input[type=file]", content)
    page.wait_for_function("() => document.querySelector('.verdict strong').textContent === '7'")
    text = {"name": "text.png", "mimeType": "image/png", "buffer": b"no image at all"}
    page.set_input_files("input[type=file]", text)
    page.wait_for_selector("[role=alert]")
    assert page.inner_text("[role=alert]").startswith("image: needs to be a complete image")
    page.get_by_role("button", name="Sample 3, 3").click()  # the way back
    page.wait_for_function("() => document.querySelector('.verdict strong')?.textContent === '3'")
    assert page.locator("[role=alert]").count() == 0


def test_a_file_of_100_megabytes_is_refused_before_it_is_sent(page, open_view):
    open_view("image")
    page.evaluate("""() => {
        const drop = new DataTransfer();
        drop.items.add(new File([new Uint8Array(1e8)], "huge.png"));
        const event = new DragEvent("drop", { dataTransfer: drop, bubbles: true });
        document.getElementById("main").dispatchEvent(event);
    }""")
    assert page.inner_text("[role=alert]") == "huge.png has 100 MB; at most 16 MB can be read."


def test_samples_patches_and_heads_need_no_mouse(page, open_view, explorer):
    open_view("image")
    page.get_by_role("button", name="Sample 4, Y").focus()
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('.verdict strong').textContent === 'Y'")
    page.locator(".image-maps svg").first.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    page.wait_for_selector("text=patch in row 2, column 1")
    page.get_by_role("button", name="encoder.1.self, head 3").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("figcaption:has-text('encoder.1.self, head 3')")
    settle(page)
    from regard.web.explorer.explorer import unpack

    answer = answer_of(explorer, sample=4, token=14)
    largest = float(unpack(answer["weights"])[1 * 4 + 3, 1:].max())
    shown = page.locator(".image-maps .readout").nth(1).get_attribute("data-value")
    assert float(shown) == largest


def test_a_link_restores_sample_token_and_head(page, open_view):
    open_view("image", sample=7, token=8, site=2, head=1)
    assert shown_class(page) == "?"
    assert "none of the 36 classes" in page.inner_text(".warning")
    assert page.locator(".image-maps figcaption").nth(1).inner_text() == "encoder.2.self, head 1"
    assert page.locator("h2", has_text="patch in row 1, column 1").count() == 1


def test_the_view_fits_a_phone(new_page):
    page = new_page(viewport={"width": 390, "height": 800})
    page.goto("/#/image")
    settle(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
