"""Which pages of a built site would fetch something from elsewhere: scripts, styles, fonts, images, frames."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

ELSEWHERE = re.compile(r"^\s*(https?:)?//", re.IGNORECASE)
# An <a href> is followed by a reader, not by the page. What a <link> only names is not fetched either.
NAMES = {"canonical", "prev", "next", "alternate", "author", "license"}
IN_STYLES = re.compile(r"(?:url\(\s*|@import\s+)['\"]?((?:https?:)?//[^'\")\s;]+)", re.IGNORECASE)


class Fetches(HTMLParser):
    """Collects the addresses that a browser asks for by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "link" and set((given.get("rel") or "").split()) <= NAMES:
            return
        for name in ("src", "srcset", "href", "xlink:href", "data", "poster"):
            if tag != "a" and ELSEWHERE.match(given.get(name) or ""):
                self.found.append(f"<{tag} {name}={given[name]}>")
        self.found += IN_STYLES.findall(given.get("style") or "")


def fetched(site: Path) -> list[str]:
    """`page: address`, for every page and style sheet of the site."""
    found = []
    for path in sorted(site.rglob("*.html")):
        fetches = Fetches()
        fetches.feed(path.read_text(encoding="utf-8"))
        found += [f"{path.relative_to(site)}: {each}" for each in fetches.found]
    for path in sorted(site.rglob("*.css")):
        found += [f"{path.relative_to(site)}: {each}" for each in IN_STYLES.findall(path.read_text(encoding="utf-8"))]
    return found
