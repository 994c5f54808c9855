"""Serves the built page on this machine alone, from the installed package."""

from __future__ import annotations

from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from emulon.core.errors import EmulonError

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
