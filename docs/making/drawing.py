"""SVG in the page's own ink: boxes with arrows, strips of named slots, weights as shades, curves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

HUES = ("#4a90b8", "#d9694f", "#5fa06c", "#c9a227", "#8f74bd")
CHARACTER = 6.1  # of a 10 point sans-serif, on average: how wide a box must be


class Drawing:
    """Elements, and how far they reach."""

    def __init__(self, title: str) -> None:
        self.title, self.parts = title, list[str]()
        self.width = self.height = 0.0

    def reach(self, x: float, y: float) -> None:
        self.width, self.height = max(self.width, x), max(self.height, y)

    def text(
        self, x: float, y: float, words: str, *, anchor: str = "start", size: int = 10, faint: bool = False
    ) -> None:
        style = ' opacity="0.7"' if faint else ""
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"{style}>{escape(words)}</text>'
        )
        if anchor == "start":
            self.reach(x + CHARACTER * size / 10 * len(words), y + 4)

    def box(self, x: float, y: float, width: float, height: float, *, hue: str = "", shade: float = 0.16) -> None:
        fill = f'fill="{hue}" fill-opacity="{shade:.3f}" stroke="{hue}"' if hue else 'fill="none" stroke="currentColor"'
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="3" {fill}/>')
        self.reach(x + width + 1, y + height + 1)

    def cell(self, x: float, y: float, width: float, height: float, weight: float, hue: str = HUES[0]) -> None:
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{hue}" '
            f'fill-opacity="{weight:.3f}" stroke="currentColor" stroke-opacity="0.25" stroke-width="0.5"/>'
        )
        self.reach(x + width + 1, y + height + 1)

    def line(self, points: Iterable[tuple[float, float]], *, hue: str = "currentColor", dashed: bool = False) -> None:
        points = list(points)
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dashes = ' stroke-dasharray="4 3"' if dashed else ""
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{hue}" stroke-width="1.3"{dashes}/>')
        self.reach(max(x for x, _ in points) + 1, max(y for _, y in points) + 1)

    def arrow(self, *points: tuple[float, float]) -> None:
        self.line(points)
        (x, y), (before_x, before_y) = points[-1], points[-2]
        angle = math.atan2(y - before_y, x - before_x)
        wings = [(x - 6 * math.cos(angle + turn), y - 6 * math.sin(angle + turn)) for turn in (0.45, -0.45)]
        self.line([wings[0], (x, y), wings[1]])

    def svg(self, caption: str) -> str:
        """A figure for a Markdown page; it has no blank line, which would end the HTML."""
        width, size = f"{self.width + 8:.0f}", f"{self.width + 8:.0f} {self.height + 8:.0f}"
        # On a phone a wide picture is scrolled, not shrunk until nobody can read it.
        look = f'width="{width}" style="min-width: min({width}px, 26rem)" fill="currentColor" font-family="sans-serif"'
        return (
            f'<figure class="picture"><svg xmlns="http://www.w3.org/2000/svg" viewBox="-4 -4 {size}" {look} role="img" '
            f'aria-label="{escape(self.title)}">{"".join(self.parts)}</svg>'
            f"<figcaption>{escape(caption)}</figcaption></figure>"
        )


def boxes(drawing: Drawing, x: float, y: float, stages: Sequence[Sequence[str]]) -> list[tuple[float, float, float]]:
    """A row of boxes of lines, joined by arrows; (left, right, middle height) of each."""
    height = 14.0 * max(map(len, stages)) + 10
    places = []
    for number, lines in enumerate(stages):
        width = max(len(line) for line in lines) * CHARACTER + 14
        drawing.box(x, y, width, height, hue=HUES[number % len(HUES)])
        top = y + (height - 14 * len(lines)) / 2 + 11
        for row, line in enumerate(lines):
            drawing.text(x + width / 2, top + 14 * row, line, anchor="middle")
        if places:
            drawing.arrow((places[-1][1] + 3, y + height / 2), (x - 3, y + height / 2))
        places.append((x, x + width, y + height / 2))
        x += width + 30
    return places


def strip(drawing: Drawing, x: float, y: float, slots: Iterable[tuple[str, int, str]]) -> float:
    """One token from above: a cell for every feature, groups by name; returns where it ends below."""
    for number, (name, size, holds) in enumerate(slots):
        hue = HUES[number % len(HUES)]
        shown = min(size, 12)
        for i in range(shown):
            drawing.cell(x + 15 * i, y, 15, 15, 0.45, hue)
        drawing.text(
            x + 15 * shown + 8, y + 11, f"{name}{f' ×{size}' if size > 1 else ''}{f': {holds}' if holds else ''}"
        )
        y += 19
    return y


def shades(
    drawing: Drawing,
    x: float,
    y: float,
    weights: Sequence[Sequence[float]],
    rows: Sequence[str],
    groups: Sequence[str],
    cell: float = 12.0,
) -> float:
    """A matrix of attention weights, queries downwards; groups of equally many columns are named above."""
    left = x + max(map(len, rows)) * CHARACTER + 8
    width = len(weights[0]) * cell
    for number, name in enumerate(groups):
        drawing.text(left + (number + 0.5) * width / len(groups), y + 9, name, anchor="middle", faint=True)
    for row, (name, values) in enumerate(zip(rows, weights, strict=True)):
        top = y + 15 + row * (cell + 4)
        drawing.text(left - 6, top + cell - 2, name, anchor="end")
        for column, weight in enumerate(values):
            drawing.cell(left + column * cell, top, cell, cell, min(1.0, weight))
    for edge in range(1, len(groups)):
        at = left + edge * width / len(groups)
        drawing.line([(at, y + 13), (at, y + 13 + len(rows) * (cell + 4))])
    return y + 15 + len(rows) * (cell + 4)


def curves(
    drawing: Drawing,
    x: float,
    y: float,
    lines: Sequence[tuple[str, Sequence[float], Sequence[float], bool]],
    *,
    title: str = "",
    width: float = 260.0,
    height: float = 110.0,
    named: bool = True,
) -> float:
    """(name, x, y, dashed) of every line, on common axes; returns where it ends below."""
    every_x, every_y = [a for _, xs, _, _ in lines for a in xs], [b for _, _, ys, _ in lines for b in ys]
    low, high, bottom, top = min(every_x), max(every_x), min(every_y), max(every_y)
    drawing.text(x, y + 9, title, faint=True)
    y += 14
    drawing.box(x, y, width, height)

    def place(a: float, b: float) -> tuple[float, float]:
        return x + 4 + (a - low) / (high - low) * (width - 8), y + height - 4 - (b - bottom) / (top - bottom) * (
            height - 8
        )

    for number, (name, xs, ys, dashed) in enumerate(lines):
        hue = HUES[number % len(HUES)]
        drawing.line([place(a, b) for a, b in zip(xs, ys, strict=True)], hue=hue, dashed=dashed)
        if named:
            drawing.line(
                [(x + width + 8, y + 9 + 15 * number), (x + width + 26, y + 9 + 15 * number)], hue=hue, dashed=dashed
            )
            drawing.text(x + width + 30, y + 13 + 15 * number, name)
    drawing.text(x, y + height + 12, f"{low:g}", faint=True, size=8)
    drawing.text(x + width, y + height + 12, f"{high:g}", anchor="end", faint=True, size=8)
    return y + height + 18
