"""What holds for every view of the page."""

import csv
import io
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image

from browser.conftest import settle
from regard.page import FOLDER
from regard.runs import find_run

pytestmark = pytest.mark.browser
VIEWS = re.findall(r"^  \"?([a-z-]+)\"?: \[\"", (FOLDER / "app.js").read_text(), re.MULTILINE)
THEME = "if (location.protocol === 'http:') localStorage.setItem('theme', '{}')"
every_view = pytest.mark.parametrize("view", VIEWS)


def saved(page, name):
    """The file that an entry of the menu saves."""
    page.get_by_role("button", name=re.compile("Save")).click()
    with page.expect_download() as download:
        page.get_by_role("menuitem", name=name).click()
    return Path(download.value.path())


def has_entry(page, name):
    page.get_by_role("button", name=re.compile("Save")).click()
    count = page.get_by_role("menuitem", name=name).count()
    page.keyboard.press("Escape")
    return count == 1


def shown(page):
    """What a user reads in the view; the menu and the banner of a saved page apart."""
    texts = "main [data-value], main td, main h2, main .readout, main .token, main .drawing text"
    return page.evaluate(
        """(texts) => [...document.querySelectorAll(texts)].filter((x) => x.getClientRects().length)
        .map((x) => x.dataset.value ?? x.textContent)""",
        texts,
    )


@every_view
def test_a_view_opens_without_an_error_and_asks_only_this_server(page, open_view, server, view):
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    open_view(view)
    assert page.locator("main h1").inner_text()
    assert page.locator("main .hint").inner_text().endswith((".", "?"))
    assert page.locator("main .error").all_inner_texts() == []
    assert all(x.startswith((f"{server}/", "blob:", "data:", "about:")) for x in asked)
    assert page.title().endswith("Regard")


@pytest.mark.parametrize("theme", ["light", "dark"])
@every_view
def test_a_view_has_no_accessibility_violation(page, open_view, view, theme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-core")
    page.add_init_script(THEME.format(theme))
    open_view(view)
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    # what is about to be drawn fades in; its colours are judged when they are there
    page.wait_for_timeout(200)
    violations = axe.Axe().run(page).response["violations"]
    messages = [f"{x['id']}: {x['help']}: {x['nodes'][0]['html'][:200]}" for x in violations]
    assert not messages


@every_view
def test_a_narrow_window_never_scrolls_sideways(new_page, view):
    page = new_page(viewport={"width": 390, "height": 844}, has_touch=True)
    page.goto(f"/#/{view}")
    settle(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    wide = page.evaluate(
        """() => [...document.querySelectorAll('main button, main select, main input')]
        .filter((x) => x.getBoundingClientRect().right > 391)
        .filter((x) => !x.closest('.scroll, .heatmap, .chart, .tokens, .strip-heads'))
        .map((x) => x.outerHTML.slice(0, 120))"""
    )
    assert not wide


@every_view
def test_the_keyboard_reaches_navigation_and_view(page, open_view, view):
    open_view(view)
    page.locator("body").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the view"
    reached = []
    for _ in range(len(VIEWS) + 4):  # name, views, save, present, theme
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.closest('nav, main, header').tagName"))
    assert reached.count("NAV") == len(VIEWS)
    page.keyboard.press("Tab")
    if page.locator("main :is(a, button, input, select, textarea, [tabindex='0'])").count():
        assert page.evaluate("Boolean(document.activeElement.closest('main'))")
    page.locator("body").press("Home")
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


@every_view
def test_a_reload_restores_the_view(page, open_view, view):
    open_view(view)
    url, before = page.url, shown(page)
    page.reload()
    settle(page)
    assert (page.url, shown(page)) == (url, before)


def test_the_back_button_returns_to_the_view_before(page, open_view):
    open_view(VIEWS[0])
    titles = [page.locator("main h1").inner_text()]
    for view in VIEWS[1:3]:
        page.locator("nav a").nth(VIEWS.index(view)).click()
        settle(page)
        titles.append(page.locator("main h1").inner_text())
    assert len(set(titles)) == 3
    for title in titles[1::-1]:
        page.go_back()
        page.get_by_role("heading", name=title, level=1).wait_for()
    page.go_forward()
    page.get_by_role("heading", name=titles[1], level=1).wait_for()


def test_windows_do_not_disturb_each_other(new_page):
    pages = [new_page() for _ in range(3)]
    texts = ["3 days", "March 5, 2024", "Monday and Tuesday"]
    for page, text in zip(pages, texts, strict=True):  # all are asked before any is answered
        page.goto(f"/#/text?model=phrases&text={text}", wait_until="commit")
    for page in pages:
        settle(page)
        assert page.locator("main .error").all_inner_texts() == []
    assert len({"".join(shown(page)) for page in pages}) == 3


def test_the_theme_stays_and_does_not_change_what_is_shown(page, open_view):
    open_view("text")
    before, ground = shown(page), "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.get_by_role("button", name="Dark colours").click()
    assert page.evaluate(ground) != light
    page.reload()
    settle(page)
    assert page.get_by_role("button", name="Light colours").count() == 1
    assert shown(page) == before


def test_an_unknown_view_leads_on(page):
    page.goto("/#/nowhere")
    page.get_by_role("link", name="Open the text view").click()
    settle(page)
    assert page.url.endswith("#/text")


@every_view
def test_pictures_and_tables_of_a_view_can_be_saved(page, open_view, view):
    open_view(view)
    if page.locator("main .drawing:visible").count():
        svg = ElementTree.fromstring(saved(page, "Vector (SVG)").read_bytes())
        assert svg.tag.endswith("svg")
        assert len(list(svg.iter())) > 2  # beside itself its ground and a drawing
        image = Image.open(saved(page, "Picture (PNG)"))
        assert image.format == "PNG"
        assert len(image.convert("RGB").getcolors(1 << 24) or []) > 2
    if has_entry(page, "Table (CSV)"):
        rows = list(csv.reader(io.StringIO(saved(page, "Table (CSV)").read_text())))
        assert len(rows) > (0 if view == "runs" else 1)  # there are no runs here
        assert len({len(row) for row in rows}) == 1


@every_view
def test_a_saved_page_shows_the_same_without_a_server(page, new_page, open_view, view, tmp_path):
    open_view(view)
    before = shown(page)
    file = shutil.copy(saved(page, "Offline page (HTML)"), tmp_path / "saved.html")
    asked = []
    other = new_page(offline=True)
    other.on("request", lambda request: asked.append(request.url))
    other.goto(Path(file).as_uri())
    settle(other)
    assert before
    assert other.locator("main .banner").count() == 1
    assert other.locator("main .error").all_inner_texts() == []
    assert shown(other) == before
    assert all(x.startswith(("file:", "data:", "blob:")) for x in asked)


COMMANDS = {  # parameters of `regard view`, where a view needs some
    "text": {"model": "phrases", "text": "3 days", "to": "de"},
    "what-if": {
        "model": "phrases",
        "text": "3 days",
        "to": "de",
        "edits": "scale_scores('*', factor=0.5)",
    },
    "atlas": {"model": "demo:3000"},
    "time": {"model": "phrases-gru", "text": "3 days", "to": "de"},
    "image": {"model": "glyphs", "sample": "1"},
    "sound": {"model": "morse", "message": "SOS"},
    "claims": {"claim": "A4"},
    "cost": {"model": "language_base"},
}


@every_view
def test_a_page_of_the_command_line_opens_without_a_server(explorer, new_page, view, tmp_path):
    from regard.web.explorer.view_file import write_view

    file = write_view(explorer, view, COMMANDS.get(view, {}), tmp_path / "view.html")
    page = new_page(offline=True)
    page.goto(file.as_uri())
    settle(page)
    assert page.locator("main .error").all_inner_texts() == []
    assert page.locator("main .drawing, main table, main math, main .panel").count() > 0


HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\"></script><script>document.title='owned'</script>"
)


@pytest.mark.parametrize("view", ["text", "what-if", "runs", "atlas"])
def test_hostile_text_and_names_of_runs_are_shown_as_text(page, open_view, runs_folder, view):
    run = runs_folder / "<img src=x onerror=alert(1)>"
    if not run.exists():
        shutil.copytree(find_run("phrases"), run)
    dialogs = []
    page.on("dialog", lambda dialog: dialogs.append(dialog.message) or dialog.dismiss())
    for model in ("phrases", f"runs/{run.name}"):
        open_view(view, model=model, text=HOSTILE, to="de")
        assert page.locator("img[src=x]").count() == 0
    assert not dialogs
