"""`emulon playground`: the playground in the browser, served from this machine to itself."""

from __future__ import annotations

import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from emulon.cli.options import CommandOptions, Size, shown

EXAMPLES = """examples:
  emulon playground
  emulon playground --port 0 --no-open         any free port, printed; nothing is opened
  emulon run ridge --data houses.csv --target price && emulon playground --run report"""


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """Open the playground: one frozen transformer in the browser, running whatever its prompt says."""

    port: Size = 8765
    """of 127.0.0.1; 0 for any that is free"""
    open: bool = True
    """open it in the browser"""
    run: Annotated[Path | None, shown("DIR")] = None
    """a report folder of emulon run: open with some of its rows, and what it fitted to them"""


def main(options: Options) -> int:
    from emulon.playground.runs import places_of
    from emulon.playground.server import address, serving

    places = {} if options.run is None else places_of(options.run)
    with serving(options.port) as server:
        first = next((f"#{place}" for place in places.values()), "")
        print(f"{address(server)}{first}  (Ctrl-C to stop)", flush=True)
        for name, place in list(places.items())[1:]:
            print(f"{name}: {address(server)}#{place}", flush=True)
        if options.open:
            webbrowser.open(f"{address(server)}{first}")
        server.serve_forever()
    return 0
