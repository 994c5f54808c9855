"""`emulon playground`: the playground in the browser, served from this machine to itself."""

from __future__ import annotations

import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from emulon.cli.options import CommandOptions, Size, shown
from emulon.playground.server import address, serving
from emulon.report.terminal import say

EXAMPLES = """examples:
  emulon playground
  emulon playground --port 0 --no-browser      any free port, printed; no browser is opened
  emulon run ridge --data houses.csv --target price && emulon playground --run report"""


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """Open the playground: one frozen transformer in the browser, running whatever its prompt says."""

    port: Size = 8765
    """of 127.0.0.1; 0 for any that is free"""
    browser: bool = True
    """open it in the browser"""
    run: Annotated[Path | None, shown("DIR")] = None
    """a report folder of emulon run: open with some of its rows, and what it fitted to them"""


def main(options: Options) -> int:
    places: dict[str, str] = {}
    if options.run is not None:
        from emulon.playground.runs import places_of  # the server alone needs no torch

        places = places_of(options.run)
    with serving(options.port) as server:
        home = address(server)
        addresses = {name: f"{home}#{place}" for name, place in places.items()}
        first, *others = list(addresses.items()) or [("", home)]
        say(f"{first[1]}  (Ctrl-C to stop)", *(f"{name}: {where}" for name, where in others))
        options.finish({"address": first[1], "runs": addresses})
        if options.browser:
            webbrowser.open(first[1])
        server.serve_forever()
    return 0
