"""The playground's pictures in docs/images: `python playground/screenshots.py`, which `make screenshots` runs."""

from __future__ import annotations

import io
import shutil
import threading
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from emulon.playground import address, serving

IMAGES = Path(__file__).parents[1] / "docs" / "images"
# name: (address, width, height, light or dark)
PICTURES = {
    "playground": ("#algorithms/huber/60", 1280, 820, "light"),
    "playground-inside": ("#algorithms/logistic/40", 1280, 1940, "dark"),
    "playground-llama": ("#llama/lasso", 1280, 1240, "light"),
    "playground-softmax": ("#softmax", 1280, 860, "light"),
    "playground-identify": ("#identify", 1280, 800, "light"),
    "playground-machine": ("#machine/5", 1280, 1190, "dark"),
    "playground-phone": ("#algorithms/huber/60", 390, 844, "light"),
    "playground-phone-llama": ("#llama/huber", 390, 844, "dark"),
}
# The moving picture: what the Llama runs, how many words it writes a frame, and milliseconds of a frame and of a stop.
MOVING, WORDS, FRAME, STILL = ("ridge", "huber"), 5, 120, 2000


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    executable = shutil.which("chromium") or shutil.which("google-chrome")
    with serving(0) as server, sync_playwright() as play:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = play.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        for name, (where, width, height, theme) in PICTURES.items():
            page = opened(browser, address(server) + where, width, height, theme)
            if where.startswith("#llama"):
                page.get_by_role("button", name="to the end").click()
                page.wait_for_selector("#words[data-done=true]")
                page.locator(".answer span").nth(-30).click()
                page.evaluate("scrollTo(0, 0)")
            page.wait_for_timeout(300)
            # A few dozen colours are all there are; a palette keeps the file small.
            picture = seen(page).quantize(128, dither=Image.Dither.NONE)
            page.close()
            picture.save(IMAGES / f"{name}.png", optimize=True)
        film(opened(browser, address(server) + "#llama", 1080, 900, "light"))
        browser.close()
        server.shutdown()


def opened(browser: Browser, where: str, width: int, height: int, theme: str) -> Page:
    page = browser.new_page(
        viewport={"width": width, "height": height}, color_scheme="dark" if theme == "dark" else "light"
    )
    page.goto(where)
    page.wait_for_selector("h1")
    return page


def seen(page: Page) -> Image.Image:
    return Image.open(io.BytesIO(page.screenshot())).convert("RGB")


def film(page: Page) -> None:
    """The stock Llama writes out two algorithms, a few words a frame: an animated picture for the README."""
    frames: list[Image.Image] = []
    times: list[int] = []

    def take(milliseconds: int) -> None:
        top, box = page.locator("h1").bounding_box(), page.locator(".stage").bounding_box()
        assert top is not None and box is not None
        whole = seen(page)
        frames.append(whole.crop((0, int(top["y"]) - 14, whole.width, int(box["y"] + box["height"]) + 14)))
        times.append(milliseconds)

    for name in MOVING:
        page.locator(f"input[name=method][value={name}]").check()
        page.get_by_role("button", name="from the start").click()
        take(STILL)
        while page.locator("#words[data-done=true]").count() == 0:
            page.get_by_role("button", name="one word").evaluate(
                f"each => {{ for (let k = 0; k < {WORDS}; k++) each.click(); }}"
            )
            take(FRAME)
        times[-1] = STILL
    # One palette for all, so that a frame holds only what has changed since the one before.
    height = max(frame.height for frame in frames)
    palette = frames[len(frames) * 3 // 4].quantize(96, dither=Image.Dither.NONE)
    still = [padded(frame, height).quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    still[0].save(IMAGES / "llama.gif", save_all=True, append_images=still[1:], duration=times, loop=0, optimize=True)


def padded(frame: Image.Image, height: int) -> Image.Image:
    whole = Image.new("RGB", (frame.width, height), frame.getpixel((2, 2)))
    whole.paste(frame, (0, 0))
    return whole


if __name__ == "__main__":
    main()
