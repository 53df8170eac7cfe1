"""Take the pictures of the explorer's views that the docs show; needs Chromium and playwright.

for lr in 3e-4 1e-3 3e-3; do
  regard train phrases --set train.steps=300 --set lr=$lr --out runs/lr-$lr
done
python docs/make_pictures.py [PICTURE…]
"""

import io
import shutil
import sys
import threading
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

import uvicorn
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from regard.runs.downloads import DOWNLOADS
from regard.web.api import create_app
from regard.web.explorer.catalog import Catalog, default_names
from regard.web.explorer.explorer import Explorer

FOLDER = Path(__file__).parent / "look" / "explorer"
LAPTOP, PHONE, LARGE = (1366, 768), (390, 844), (1920, 1080)
STORY = {"model": "stories"}
AGREEMENT = STORY | {"text": "The keys beside the lamp"}
COPYING = STORY | {"text": "Say sun yellow white red wind. Again sun yellow white red"}
CELL = {"site": "decoder.0.self", "head": "3", "query": "13", "key": "3"}


class Picture(NamedTuple):
    """A view in a window, by the parameters of its link."""

    view: str
    size: tuple[int, int]
    params: dict[str, str] = {}
    theme: str = "light"
    present: bool = False


PICTURES = {
    "text": Picture("text", LAPTOP, STORY),
    "text-dark": Picture("text", LAPTOP, STORY, "dark"),
    "text-phone": Picture("text", PHONE, STORY),
    "text-phone-dark": Picture("text", PHONE, AGREEMENT, "dark"),
    "text-large": Picture("text", LARGE, COPYING),
    "present": Picture("text", LARGE, STORY, "light", True),
    "present-dark": Picture("text", LARGE, COPYING, "dark", True),
    "arithmetic": Picture("text", LAPTOP, STORY | CELL, "dark"),
    "translation": Picture("text", LAPTOP, {"model": "phrases", "to": "de"}),
    "what-if": Picture("what-if", (1240, 1150)),
    "atlas": Picture("atlas", (1240, 900), {"model": "demo:100000", "head": "3"}),
    "time": Picture("time", (1240, 1060)),
    "image": Picture("image", (1240, 1060)),
    "sound": Picture("sound", (1240, 1140)),
    "lesson": Picture("lesson", LAPTOP, {"model": "phrases", "step": "6", "value": "0.25"}),
    "work": Picture("work", (1240, 1060)),
    "claims": Picture("claims", (1240, 860), {"claim": "A11"}),
    "cost": Picture("cost", (1240, 1060)),
    "runs": Picture("runs", (1240, 900)),
}


def take(page: Page, url: str, picture: Picture) -> bytes:
    """A picture of one view, as a PNG with a palette, which takes a third of the bytes."""
    width, height = picture.size
    page.set_viewport_size({"width": width, "height": height})
    page.goto(url)
    settings = [("localStorage", "theme", picture.theme), ("localStorage", "guide", "closed")]
    settings += [("sessionStorage", "present", "yes" if picture.present else "no")]
    for store, name, value in settings:
        page.evaluate(f"{store}.setItem('{name}', '{value}')")
    page.goto(f"{url}/#/{picture.view}?{urlencode(picture.params)}")
    page.reload()
    page.wait_for_selector("main h1", state="attached")
    if picture.view != "atlas":  # which asks until its pass has ended
        page.wait_for_load_state("networkidle")
    page.wait_for_timeout(6000 if picture.view == "atlas" else 1500)
    image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    file = io.BytesIO()
    image.quantize(256, method=Image.Quantize.MEDIANCUT, kmeans=2).save(file, "png", optimize=True)
    return file.getvalue()


def main(names: list[str]) -> None:
    """Serve the pretrained models and this folder's runs, and take each picture."""
    runs = Path("runs")
    models = [name for name in default_names() if name not in DOWNLOADS]
    explorer = Explorer(Catalog(models, [runs] if runs.is_dir() else []))
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
        for name in names or PICTURES:
            content = take(page, f"http://127.0.0.1:{port}", PICTURES[name])
            (FOLDER / f"{name}.png").write_bytes(content)
            print(f"{name}.png: {len(content) / 1000:.0f} kB")
        browser.close()
    server.should_exit = True


if __name__ == "__main__":
    main(sys.argv[1:])
