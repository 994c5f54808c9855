"""The playground as it is served, in a real browser; what it must say is computed in Python from the same files."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from emulon.interpreter import Interpreter, Program
from emulon.playground import address, serving
from playground.offers import load_offers


@dataclass
class Watched:
    """A page, and what it said that it should not: console messages, script errors, requests to elsewhere."""

    page: Page
    said: list[str] = field(default_factory=list)


@pytest.fixture(scope="session")
def programs() -> dict[str, Program]:
    return load_offers(Path(__file__).parents[2] / "playground" / "programs")


@pytest.fixture(scope="session")
def interpreter(programs: dict[str, Program]) -> Interpreter:
    return Interpreter.fitting(*programs.values())


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    with serving(0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield address(server)
        server.shutdown()


def opened(browser: Browser, served: str, width: int, height: int) -> Watched:
    watched = Watched(browser.new_page(viewport={"width": width, "height": height}))
    page, said = watched.page, watched.said
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda asked: None if asked.url.startswith((served, "data:")) else said.append(asked.url))
    page.on("response", lambda answer: None if answer.status < 400 else said.append(f"{answer.status} {answer.url}"))
    return watched


@pytest.fixture(scope="module")
def desk(chromium: Browser, served: str) -> Iterator[Watched]:
    """One page for all that is asked at a desk: nothing may have been said at the end."""
    watched = opened(chromium, served, 1280, 900)
    yield watched
    assert watched.said == []


@pytest.fixture(scope="module")
def phone(chromium: Browser, served: str) -> Iterator[Watched]:
    watched = opened(chromium, served, 390, 800)
    yield watched
    assert watched.said == []
