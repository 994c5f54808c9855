"""The only place that draws: figures and the HTML page."""

from emulon.report.page import require_writable, write

__all__ = ["require_writable", "write"]
