"""Take the pictures of the explorer's views that the docs show; needs Chromium and playwright.

python docs/make_pictures.py [VIEW…]
"""

import io
import shutil
import sys
import threading
from pathlib import Path
from urllib.parse import urlencode

import uvicorn
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from regard.web.api import create_app
from regard.web.explorer.catalog import Catalog, default_names
from regard.web.explorer.explorer import Explorer

FOLDER = Path(__file__).parent / "look" / "explorer"
WIDTH = 1240
PHRASE = {"model": "phrases", "text": "Monday, March 5, 2024", "to": "de"}
CELL = {"site": "decoder.1.cross", "head": "2", "query": "3", "key": "4"}
VIEWS: dict[str, tuple[int, dict[str, str]]] = {  # height, and parameters of the link
    "text": (1560, PHRASE | CELL),
    "what-if": (1150, {}),
    "atlas": (900, {"model": "demo:100000", "head": "3"}),
    "time": (1060, {}),
    "image": (1060, {}),
    "sound": (1140, {}),
    "work": (1060, {}),
    "claims": (860, {"claim": "A11"}),
    "cost": (1060, {}),
    "runs": (900, {}),
}


def take(page: Page, url: str, view: str) -> bytes:
    """A picture of one view, as a PNG with a palette, which takes a third of the bytes."""
    height, params = VIEWS[view]
    page.set_viewport_size({"width": WIDTH, "height": height})
    page.goto(f"{url}/#/{view}?{urlencode(params)}")
    page.reload()
    page.wait_for_selector("main h1", state="attached")
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(6000 if view == "atlas" else 1500)
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    file = io.BytesIO()
    picture.quantize(256, method=Image.Quantize.MAXCOVERAGE).save(file, "png", optimize=True)
    return file.getvalue()


def main(names: list[str]) -> None:
    """Serve the pretrained models and this folder's runs, and picture each view."""
    runs = Path("runs")
    explorer = Explorer(Catalog(default_names(), [runs] if runs.is_dir() else []))
    server = uvicorn.Server(
        uvicorn.Config(create_app({}, explorer=explorer), log_level="error", port=0)
    )
    threading.Thread(target=server.run, daemon=True).start()
    while not server.started:
        pass
    port = server.servers[0].sockets[0].getsockname()[1]
    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page()
        page.add_init_script("localStorage.setItem('guide', 'closed')")
        for view in names or VIEWS:
            content = take(page, f"http://127.0.0.1:{port}", view)
            (FOLDER / f"{view}.png").write_bytes(content)
            print(f"{view}.png: {len(content) / 1000:.0f} kB")
        browser.close()
    server.should_exit = True


if __name__ == "__main__":
    main(sys.argv[1:])
