"""A page as a reader sees it: opened from disk in a real browser, as wide as a phone."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser


@dataclass(frozen=True)
class Seen:
    """`said`: console messages, script errors and anything fetched from elsewhere."""

    said: list[str]
    width: int
    needed: int
    pictures: int


@pytest.fixture
def on_a_phone(chromium: Browser) -> Callable[[Path], Seen]:
    return lambda page: look(page, chromium)


def look(page: Path, browser: Browser) -> Seen:
    said: list[str] = []
    phone = browser.new_page(viewport={"width": 390, "height": 800})
    phone.on("console", lambda message: said.append(message.text))
    phone.on("pageerror", lambda error: said.append(str(error)))
    phone.on("request", lambda asked: said.append(asked.url) if not asked.url.startswith("file:") else None)
    phone.goto(page.as_uri())
    width, needed = phone.evaluate("[innerWidth, document.documentElement.scrollWidth]")
    pictures = phone.locator("svg").count()
    phone.close()
    return Seen(said, width, needed, pictures)
