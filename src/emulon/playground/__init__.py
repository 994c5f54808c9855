"""The playground: one frozen transformer in the browser, running whatever its prompt says.

The page is TypeScript and comes built, in `static/`, with the models and programs it plays with, in `static/data/`;
playground/ in the repository makes both. Here it is served, on this machine alone, and a run of `emulon run` becomes an
address of it: some of its points, and what it fitted to them. The picture has one feature and a target, or two features
and two classes: the features with the largest weights, the others at their means, both axes scaled to the picture.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import torch

from emulon.core.errors import EmulonError
from emulon.run import Result
from emulon.tables.data import Data

STATIC = Path(__file__).parent / "static"
HOST = "127.0.0.1"


class Handler(SimpleHTTPRequestHandler):
    """Types are named here: what a system's own table says of .js differs from one to the next."""

    extensions_map = {  # noqa: RUF012 (the base class declares it, and not as a ClassVar)
        ".html": "text/html; charset=utf-8",
        ".js": "text/javascript; charset=utf-8",
        ".css": "text/css; charset=utf-8",
        ".json": "application/json",
        ".svg": "image/svg+xml",
        "": "application/octet-stream",
    }

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-cache")  # after an upgrade the old page would meet new files
        super().end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Requests for one's own page are no news."""


def serving(port: int) -> ThreadingHTTPServer:
    """Bound, and not yet serving; port 0 takes any that is free."""
    try:
        return ThreadingHTTPServer((HOST, port), partial(Handler, directory=str(STATIC)))
    except (OSError, OverflowError) as error:
        raise EmulonError(f"port {port} cannot be had ({error}); choose another, or 0 for any: --port 0") from None


def address(server: ThreadingHTTPServer) -> str:
    return f"http://{HOST}:{server.server_address[1]}/"


# Points that a program of the playground takes.
POINTS = 24
# Where a picture ends: |x| and |y|, less what its marks need.
WIDE, HIGH = 0.95, 1.9
# What emulon run leaves beside its page: the addresses of its results.
PLACES = "playground.json"
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"


def where(result: Result, data: Data) -> str | None:
    """What stands behind # in the playground's address; nothing for an algorithm that it has no prompt of."""
    run, loss = result.run, result.run.program.loss
    name = result.name.removesuffix("_regression")
    link = loss.link.name
    wanted = 2 if link == "margin" else 1
    if name not in offered() or len(data.features) < wanted:
        return None
    first = (0,) * (run.x.ndim - 2)
    x, y, weights = run.x[first].double(), run.y[first].double(), run.weights[first].double()
    count = len(data.features)
    constant = weights[count].item() if len(weights) > count else 0.0  # ones stand behind the features
    chosen = weights[:count].abs().argsort(descending=True)[:wanted]
    rows = torch.linspace(0, len(x) - 1, min(POINTS, len(x)), device="cpu").round().long()
    columns, told = x[rows][:, chosen], y[rows]
    wide = columns.abs().amax(dim=0).clamp(min=1e-300)
    slopes = weights[chosen] * wide / WIDE
    places = columns / wide * WIDE
    if link == "margin":
        points = torch.cat([places, told.sign().unsqueeze(-1)], dim=-1)
    else:
        scale = HIGH / max(told.abs().max().item(), 1e-300)
        points = torch.cat([places, (told * scale).unsqueeze(-1)], dim=-1)
        # A rate is an exponential: scaling it shifts its logarithm.
        constant = constant + math.log(scale) if link == "rate" else constant * scale
        slopes = slopes if link == "rate" else slopes * scale
    named = " and ".join(data.features[i] for i in chosen.tolist())
    against = "two classes" if link == "margin" else data.target
    title = (
        f"{len(rows)} of {len(x)} rows of {data.name}: {named}, and {against}, scaled to the picture. Dotted: what the "
    )
    title += "run fitted, other features at their means. The prompt here has a step size and a penalty of its own."
    fitted = ",".join(f"{weight:.6g}" for weight in (constant, *slopes.tolist()))
    words = ["algorithms", name, "200", _text(points.tolist()), fitted]
    return "/".join([*words, quote(title.replace("/", "∕"), safe="")])


def offered() -> set[str]:
    """The names of the algorithms that the playground has prompts of."""
    return {each["name"] for each in json.loads((STATIC / "data" / "programs.json").read_text(encoding="utf-8"))}


def places_of(folder: Path) -> dict[str, str]:
    """The addresses that a run has left in its report's folder, by the names of its algorithms."""
    try:
        found = json.loads((folder / PLACES).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict) or not found or not all(isinstance(each, str) for each in found.values()):
        raise EmulonError(f"{folder} holds no run that the playground could open; name the report folder of emulon run")
    return found


def _text(points: Sequence[Sequence[float]]) -> str:
    return ";".join(",".join(f"{number:.3g}" for number in point) for point in points)


def single_page() -> str:
    """The playground as one file that opens from disk: its script, style and data inside."""
    data = {path.name: base64.b64encode(path.read_bytes()).decode() for path in sorted((STATIC / "data").iterdir())}
    kept = ",".join(f'"data/{name}":"{text}"' for name, text in data.items())
    script, style, page = (
        (STATIC / name).read_text(encoding="utf-8") for name in ("app.js", "style.css", "index.html")
    )
    script = script.replace("</script", r"<\/script")
    parts = {
        '<link rel="stylesheet" href="style.css">': f"<style>{style}</style>",
        '<script type="module" src="app.js"></script>': f"<script>emulonFiles={{{kept}}}</script>\n"
        f'<script type="module">{script}</script>',
        "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:": POLICY,
    }
    for place, part in parts.items():
        assert place in page, f"{place} is not in the page any more"
        page = page.replace(place, part)
    return page
