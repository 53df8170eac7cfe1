"""A running server and a browser; `make browser` sets both up.

    def test_a_text_is_shown(page, server, open_view):
        open_view("text", model="phrases", text="3 days")   # waits until nothing is being computed

Nothing heavy is imported at the top: `make test` collects this folder too.
"""

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from web_server import running, wait_until

FLAGS = (
    "--no-sandbox",  # as root, and in containers, Chromium has none
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
NAMES = ("chromium", "google-chrome")
# Chromium logs every status above 399 itself; 400 and 503 are answers that a view shows or retries
EXPECTED = tuple(f"the server responded with a status of {n}" for n in (400, 503))
CLOSE_GUIDE = "if (location.protocol === 'http:') localStorage.setItem('guide', 'closed')"


@pytest.fixture(scope="session")
def runs_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder whose runs the server lists; a test may put runs into it."""
    folder = tmp_path_factory.mktemp("server") / "runs"
    folder.mkdir()
    return folder


@pytest.fixture(scope="session")
def explorer(runs_folder: Path) -> Any:
    """The explorer of the server: all models of the package, whatever `regard get` has fetched."""
    from regard.runs.downloads import DOWNLOADS
    from regard.web.explorer import Explorer
    from regard.web.explorer.catalog import Catalog, default_names

    names = [name for name in default_names() if name not in DOWNLOADS]
    return Explorer(Catalog(names, [runs_folder], device="cpu"))


@pytest.fixture(scope="session")
def server(explorer: Any) -> Iterator[str]:
    """The address of a server, such as http://127.0.0.1:40123."""
    from regard.web.api import create_app

    with running(create_app({}, explorer=explorer)) as address:
        yield address


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium of the distribution."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"needs one of {', '.join(NAMES)} on PATH")
    with playwright.sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=path, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def new_page(browser: Any, server: str) -> Iterator[Callable[..., Any]]:
    """Opens pages, each as in a browser of its own; errors in their console fail the test."""
    problems: list[str] = []
    contexts = []

    def report(kind: str, text: str) -> None:
        if not any(x in text for x in EXPECTED):
            problems.append(f"{kind}: {text}")

    def opened(*, guide: bool = False, **options: Any) -> Any:
        options = {"base_url": server, "viewport": {"width": 1280, "height": 900}} | options
        context = browser.new_context(**options)
        contexts.append(context)
        context.set_default_timeout(15_000)
        if not guide:
            context.add_init_script(CLOSE_GUIDE)
        page = context.new_page()
        page.wait_for_function = partial(poll, page)
        page.on("console", lambda m: m.type == "error" and report("console", m.text))
        page.on("pageerror", lambda e: report("error", str(e)))
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not problems


@pytest.fixture
def page(new_page: Callable[..., Any]) -> Any:
    """One page of 1280 × 900 pixels, not yet on the server; `page.goto("/#/text")` opens a view."""
    return new_page()


@pytest.fixture
def open_view(page: Any) -> Callable[..., None]:
    """Open a view of `page` by its link, `open_view("text", text="3 days")`, and wait for it."""

    def opened(view: str, **params: Any) -> None:
        page.goto("about:blank")  # a change behind # alone would not load the page anew
        page.goto(f"/#/{view}{'?' if params else ''}{urlencode(params)}")
        settle(page)

    return opened


def poll(page: Any, script: str, *, arg: Any = None, timeout: float = 15_000, **_: Any) -> None:
    """Wait until a script gives a true value.

    As Playwright's `wait_for_function`, which evaluates in the page, where the policy forbids it.
    """
    wait_until(lambda: bool(page.evaluate(script, arg)), timeout / 1000)


def settle(page: Any) -> None:
    """Wait until the view is there and nothing is being computed."""
    page.wait_for_selector("main h1", state="attached")
    page.wait_for_load_state("networkidle")
    page.wait_for_function("!document.querySelector('[aria-busy=true], .activity progress')")
