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

    def line(self, points: Sequence[tuple[float, float]], *, hue: str = "currentColor") -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{hue}" stroke-width="1.3"/>')
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


def boxes(drawing: Drawing, stages: Sequence[Sequence[str]], y: float = 0.0) -> list[tuple[float, float, float]]:
    """A row of boxes of lines, joined by arrows; (left, right, middle height) of each."""
    height = 14.0 * max(map(len, stages)) + 10
    x, places = 0.0, list[tuple[float, float, float]]()
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


def looped(drawing: Drawing, stages: Sequence[Sequence[str]], words: str) -> None:
    """Boxes, and an arrow with these words from the last of them back to the first."""
    places, height = boxes(drawing, stages), 14.0 * max(map(len, stages)) + 10
    start, end = (places[-1][0] + places[-1][1]) / 2, (places[0][0] + places[0][1]) / 2
    drawing.arrow((start, height + 1), (start, height + 24), (end, height + 24), (end, height + 3))
    drawing.text((start + end) / 2, height + 19, words, anchor="middle", faint=True)


def strip(drawing: Drawing, y: float, slots: Iterable[tuple[str, int, str]]) -> float:
    """One token from above: a cell for every feature, groups by name; returns where it ends below."""
    for number, (name, size, holds) in enumerate(slots):
        shown = min(size, 12)
        for i in range(shown):
            drawing.cell(15 * i, y, 15, 15, 0.45, HUES[number % len(HUES)])
        told = f"{name}{f' ×{size}' if size > 1 else ''}{f': {holds}' if holds else ''}"
        drawing.text(15 * shown + 8, y + 11, told)
        y += 19
    return y


def shades(
    drawing: Drawing, y: float, weights: Sequence[Sequence[float]], rows: Sequence[str], groups: Sequence[str]
) -> float:
    """A matrix of attention weights, queries downwards; groups of equally many columns are named above."""
    left, cell = max(map(len, rows)) * CHARACTER + 8, 12.0
    width = len(weights[0]) * cell
    for number, name in enumerate(groups):
        drawing.text(left + (number + 0.5) * width / len(groups), y + 9, name, anchor="middle", faint=True)
    for row, (name, values) in enumerate(zip(rows, weights, strict=True)):
        top = y + 15 + row * (cell + 4)
        drawing.text(left - 6, top + cell - 2, name, anchor="end")
        for column, weight in enumerate(values):
            drawing.cell(left + column * cell, top, cell, cell, min(1.0, weight))
    bottom = y + 15 + len(rows) * (cell + 4)
    for edge in range(1, len(groups)):
        at = left + edge * width / len(groups)
        drawing.line([(at, y + 13), (at, bottom - 2)])
    return bottom


def curves(
    drawing: Drawing,
    y: float,
    lines: Sequence[tuple[str, Sequence[float], Sequence[float]]],
    *,
    title: str = "",
    width: float = 260.0,
    height: float = 110.0,
) -> float:
    """(name, x, y) of every line, on common axes; returns where it ends below."""
    every_x, every_y = [a for _, xs, _ in lines for a in xs], [b for _, _, ys in lines for b in ys]
    low, high, bottom, top = min(every_x), max(every_x), min(every_y), max(every_y)
    drawing.text(0, y + 9, title, faint=True)
    y += 14
    drawing.box(0, y, width, height)
    for number, (name, xs, ys) in enumerate(lines):
        hue = HUES[number % len(HUES)]
        across = [4 + (a - low) / (high - low) * (width - 8) for a in xs]
        up = [y + height - 4 - (b - bottom) / (top - bottom) * (height - 8) for b in ys]
        drawing.line(list(zip(across, up, strict=True)), hue=hue)
        if name:
            drawing.line([(width + 8, y + 9 + 15 * number), (width + 26, y + 9 + 15 * number)], hue=hue)
            drawing.text(width + 30, y + 13 + 15 * number, name)
    drawing.text(0, y + height + 12, f"{low:g}", faint=True, size=8)
    drawing.text(width, y + height + 12, f"{high:g}", anchor="end", faint=True, size=8)
    return y + height + 18
