"""`emulon identify` with a pen in its hand: interrogation gives numbers, this part draws."""

from __future__ import annotations

from collections.abc import Sequence

from emulon.interrogate import command
from emulon.report.interrogation import write


def main(words: Sequence[str]) -> int:
    return command.identify_main(words, write)
