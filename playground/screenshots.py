"""The playground's pictures in docs/images: `python playground/screenshots.py`, which `make screenshots` runs."""

from __future__ import annotations

import io
import shutil
import threading
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from emulon.playground.server import address, serving

IMAGES = Path(__file__).parents[1] / "docs" / "images"
# name: (address, width, height, light or dark)
PICTURES = {
    "playground": ("#algorithms/huber/60", 1280, 1080, "light"),
    "playground-inside": ("#algorithms/logistic/40", 1280, 1740, "dark"),
    "playground-softmax": ("#softmax", 1280, 860, "light"),
    "playground-identify": ("#identify", 1280, 800, "light"),
    "playground-machine": ("#machine/5", 1280, 1190, "dark"),
    "playground-phone": ("#algorithms/ridge/25", 390, 844, "light"),
}


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    executable = shutil.which("chromium") or shutil.which("google-chrome")
    with serving(0) as server, sync_playwright() as play:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = play.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        for name, (where, width, height, theme) in PICTURES.items():
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=theme)
            page.goto(address(server) + where)
            page.wait_for_selector("h1")
            page.wait_for_timeout(300)
            picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            page.close()
            # A few dozen colours are all there are; a palette keeps the file small.
            picture.quantize(128, dither=Image.Dither.NONE).save(IMAGES / f"{name}.png", optimize=True)
        browser.close()
        server.shutdown()


if __name__ == "__main__":
    main()
