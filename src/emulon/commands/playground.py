"""`emulon playground`: the playground in the browser, served from this machine to itself."""

from __future__ import annotations

import webbrowser
from dataclasses import dataclass

from emulon.commands.options import CommandOptions, Size

EXAMPLES = """examples:
  emulon playground
  emulon playground --port 0 --no-open         any free port, printed; nothing is opened"""


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """Open the playground: one frozen transformer in the browser, running whatever its prompt says."""

    port: Size = 8765
    """of 127.0.0.1; 0 for any that is free"""
    open: bool = True
    """open it in the browser"""


def main(options: Options) -> int:
    from emulon.playground.server import address, serving

    with serving(options.port) as server:
        print(f"{address(server)}  (Ctrl-C to stop)", flush=True)
        if options.open:
            webbrowser.open(address(server))
        server.serve_forever()
    return 0
