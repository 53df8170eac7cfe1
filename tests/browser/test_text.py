"""The text view in a browser: what is on the screen is what the server answered."""

from urllib.parse import parse_qs, urlparse

import pytest

from regard.web.explorer.explorer import unpack

pytestmark = pytest.mark.browser
PHRASE = {"model": "phrases", "text": "March 5, 2024", "to": "de"}
HEAD = {"site": "encoder.1.self", "head": 1}
CODE = {"model": "stdlib", "text": "import os\nimport sys\n\nclass "}
KEY = {"site": "decoder.2.self", "head": 1, "key": 5}
CELL = KEY | {"query": 6}


def params(page):
    query = urlparse(urlparse(page.url).fragment).query
    return {name: values[0] for name, values in parse_qs(query).items()}


def settle(page):
    page.wait_for_timeout(350)  # longer than the delay of live updates
    page.wait_for_load_state("networkidle")
    page.wait_for_function("!document.querySelector('[aria-busy=true], .activity progress')")


def press(page, key):
    page.keyboard.press(key)
    settle(page)


def test_the_page_opens_on_the_head_without_which_the_prediction_changes_most(
    page, open_view, explorer
):
    example = "After Mark and Helen walked to the river, Mark brought a map to"
    answer = explorer.answer("text", {"model": "stories", "text": example})
    open_view("text")
    assert page.get_by_label("Text", exact=True).input_value() == example
    assert page.get_by_label("About to write").inner_text() == "→ Helen 99%"
    heads = page.locator(".head-thumb")
    assert heads.count() == len(answer["heads"]) == 12
    most = max(answer["effects"]["heads"], key=lambda x: x["effect"])
    assert answer["start"] == {"site": most["site"], "head": most["head"]}
    first, effect = heads.first, most["effect"]
    assert first.get_attribute("aria-pressed") == "true"
    assert float(first.get_attribute("data-value")) == pytest.approx(effect, abs=1e-3)
    assert effect > 5
    without = page.locator(".without")
    assert float(without.get_attribute("data-value")) == pytest.approx(effect, abs=1e-3)
    assert f"it would write {most['writes'].strip()}" in without.inner_text()


def test_sentence_map_and_heads_are_above_the_fold(new_page):
    page = new_page(viewport={"width": 1366, "height": 768})
    for model in ("stories", "phrases"):
        page.goto(f"/#/text?model={model}")
        settle(page)
        for part in (".flow", ".text-detail .heatmap svg", ".head-thumb >> nth=0"):
            box = page.locator(part).bounding_box()
            assert box["y"] + box["height"] <= 768
        assert page.locator(".text-detail .heatmap svg").bounding_box()["width"] > 700


def test_weights_flow_to_the_output_of_the_selected_token(page, open_view):
    open_view("text", model="stories")
    assert page.locator(".flow-curves path").count() >= 2
    page.get_by_label("Tokens", exact=True).get_by_role("button").nth(1).click()
    settle(page)
    assert params(page)["position"] == "1"
    assert page.locator(".flow-curves path").count() <= 2  # two tokens are visible to it
    run = "getComputedStyle(document.querySelector('.flow-curves path')).animationName"
    assert page.evaluate(run) == "flow"
    page.emulate_media(reduced_motion="reduce")
    assert page.evaluate(run) == "none"
    moves = "getComputedStyle(document.querySelector('.heatmap rect')).transitionDuration"
    assert page.evaluate(moves) in ("0s", "")


def test_an_empty_output_says_nothing_and_what_the_model_knows(page, open_view):
    open_view("text", model="phrases", text="Hello world", to="de")
    assert page.get_by_label("Output", exact=True).inner_text() == "nothing"
    assert page.get_by_text("This model knows dates, times").is_visible()
    open_view("text", model="stories", text="Hello world")
    assert page.get_by_text("The model is unsure: it knows sentences about names").is_visible()
    page.get_by_label("Text", exact=True).fill("")
    assert page.get_by_text("This model knows sentences about names").is_visible()


def test_a_long_text_leaves_room_for_the_map(new_page):
    page = new_page(viewport={"width": 1366, "height": 768})
    page.goto("/#/text?model=stories&text=" + "say red blue cat. " * 50)
    settle(page)
    assert page.locator(".flow-curves path").count() == 0
    assert page.locator(".text-detail .heatmap svg").bounding_box()["y"] < 400


def test_typing_updates_the_translation_the_link_and_nothing_else(page, open_view):
    open_view("text", model="phrases")
    page.get_by_label("Text", exact=True).fill("3 weeks")
    settle(page)
    assert page.get_by_label("Output", exact=True).inner_text() == "3 Wochen"
    assert params(page) == {"model": "phrases", "text": "3 weeks"}
    page.get_by_label("Text", exact=True).fill("")
    assert page.get_by_text("Type something, or choose an example.").is_visible()
    page.get_by_role("button", name="3 days").click()
    settle(page)
    assert page.get_by_label("Output", exact=True).inner_text() == "3 Tage"


def test_heads_are_chosen_by_mouse_and_by_arrow_keys(page, open_view):
    open_view("text", model="phrases", sort="layer")
    page.locator(".head-thumb[data-site='encoder.0.self'][data-head='2']").click()
    settle(page)
    assert page.get_by_role("heading", name="encoder.0.self, head 2").is_visible()
    press(page, "ArrowRight")
    assert (params(page)["site"], params(page)["head"]) == ("encoder.0.self", "3")


def test_heads_are_sorted_by_a_number_and_filtered_by_kind(page, open_view, explorer):
    answer = explorer.answer("text", PHRASE)
    open_view("text", **PHRASE, sort="peak", kind="cross-attention")
    cross = [x["peak"] for x in answer["heads"] if x["kind"] == "cross"]
    shown = [float(x.get_attribute("data-value")) for x in page.locator(".head-thumb").all()]
    assert shown == sorted(cross, reverse=True)


def test_a_link_restores_a_cell_with_its_arithmetic_causes_and_effects(page, open_view, explorer):
    weight = explorer.answer("text.cell", CODE | CELL)["weight"]
    pairs = explorer.answer("text.why", CODE | CELL)["pairs"]
    effects = explorer.answer("text.influence", CODE | KEY)["sites"]
    open_view("text", **CODE, **CELL)
    page.wait_for_selector("section[aria-label=Why] g")
    page.wait_for_selector("section[aria-label=Influence] td")
    page.wait_for_selector(".cell-title")
    assert float(page.locator(".cell-title").get_attribute("data-value")) == weight
    assert page.locator("section[aria-label=Arithmetic] math").count() > 6
    bars = page.locator("section[aria-label=Why] g[data-value]")
    shown = [float(x.get_attribute("data-value")) for x in bars.all()]
    assert shown == [x for *_, x in pairs]
    totals = page.locator("section[aria-label=Influence] .scroll").nth(1).locator("[data-value]")
    assert [float(x.get_attribute("data-value")) for x in totals.all()] == [
        x["effect"] for x in effects
    ]


def test_a_cell_is_pinned_by_the_keyboard_and_closed_again(page, open_view):
    open_view("text", **PHRASE, **HEAD)
    page.locator("section[aria-label=Detail] .heatmap svg").focus()
    for key in ("ArrowDown", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    settle(page)
    assert (params(page)["query"], params(page)["key"]) == ("1", "1")
    page.get_by_role("button", name="Close").click()
    settle(page)
    assert "query" not in params(page)
    assert page.locator("section[aria-label=Arithmetic]").count() == 0


def test_lines_and_one_token_show_the_weights_of_the_map(page, open_view, explorer):
    answer = explorer.answer("text.map", PHRASE | HEAD)
    weights = unpack(answer["map"])
    open_view("text", **PHRASE, **HEAD, show="arcs")
    drawn = [float(x.get_attribute("data-value")) for x in page.locator(".lines path").all()]
    assert drawn == pytest.approx([x for x in weights.flatten().tolist() if x >= 0.01])
    open_view("text", **PHRASE, **HEAD, show="token", query=2)
    best = answer["key_tokens"][int(weights[2].argmax())]
    assert f"gives {best} 0.947" in page.locator(".readout").inner_text()


def test_the_other_tabs_show_their_answers(page, open_view, explorer):
    other = PHRASE | HEAD | {"other_text": "March 6, 2024"}
    row = explorer.answer("text.compare", other)["heads"][0]
    tokens = explorer.answer("text.lens", PHRASE | {"position": 0})["tokens"]
    parts = explorer.answer("text.attribution", PHRASE | {"position": 0})["parts"]
    open_view("text", **PHRASE, tab="lens")
    page.wait_for_selector("svg.lens g")
    assert page.locator("svg.lens g text").all_text_contents()[: len(tokens[0])] == tokens[0]
    page.get_by_role("button", name="Logit attribution").click()
    settle(page)
    bars = page.locator("section[aria-label=Detail] g[data-value]")
    assert [float(x.get_attribute("data-value")) for x in bars.all()] == [x for _, x in parts]
    open_view("text", **PHRASE, **HEAD, tab="compare", vs="text", other_text="March 6, 2024")
    shown = page.locator("section[aria-label=Detail] td [data-value]").first
    assert float(shown.get_attribute("data-value")) == row["distance"]


def test_a_clicked_token_shows_what_removing_it_changes(page, open_view):
    open_view("text", **PHRASE)
    page.get_by_label("Tokens read").get_by_role("button").first.click()
    settle(page)
    assert page.get_by_role("heading", name="Ablate key “march”").is_visible()


def test_a_mistake_is_a_sentence_and_user_text_is_never_markup(page, open_view):
    open_view("text", model="phrases", text="<img src=x onerror=alert(1)>", to="de")
    assert page.locator("main img").count() == 0
    open_view("text", model="phrases", text="   ")
    assert "needs at least one token" in page.get_by_role("alert").inner_text()


def test_a_narrow_window_needs_no_sideways_scrolling(new_page, server):
    page = new_page(viewport={"width": 390, "height": 844})
    page.goto(f"{server}/#/text?query=1&key=1")
    settle(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_lens_shows_as_many_columns_as_have_room_and_the_chosen_one_is_among_them(
    page, open_view, explorer
):
    text = "Say sun yellow white red wind. Again sun yellow white red wind. Say keys lamp sun red"
    answer = explorer.answer("text.lens", {"model": "stories", "text": text})
    open_view("text", model="stories", text=text, tab="lens")
    lens = page.locator("svg.lens")
    lens.wait_for()
    whole, above = lens.bounding_box(), page.locator("section[aria-label=Detail]").bounding_box()
    assert whole["x"] + whole["width"] <= above["x"] + above["width"]
    columns = lens.locator("g").count() // len(answer["depths"])
    assert 8 < columns < len(answer["positions"])
    last = [row[-1] for row in answer["tokens"]]
    assert lens.locator("g").nth(columns - 1).text_content().strip() == last[0].strip()
    lens.focus()
    for _ in range(len(answer["positions"]) - 1):
        page.keyboard.press("ArrowLeft")
    settle(page)
    assert "after “Say”" in page.locator("section[aria-label=Detail] .readout").inner_text()
    first = lens.locator("g text").first.text_content()
    assert first.strip() == answer["tokens"][0][0].strip()
