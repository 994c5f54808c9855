"""`emulon reproduce` with a pen in its hand: claims give numbers and figures as data, this part draws."""

from __future__ import annotations

from collections.abc import Sequence

from emulon.claims import command
from emulon.report.chart import chart


def main(words: Sequence[str]) -> int:
    return command.main(words, chart)
