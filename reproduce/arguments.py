"""Command lines of the scripts in reproduce/ and benchmarks/, by the standard library alone, as GPU machines need."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

from emulon.core.errors import EmulonError, WorkFailed, unknown

# Seconds between two lines of progress.
PAUSE = 5.0


class Arguments(argparse.ArgumentParser):
    """Options of `python -m MODULE`; unreadable words raise EmulonError with one line."""

    def __init__(self, module: str, description: str, examples: str = "") -> None:
        form = argparse.RawDescriptionHelpFormatter
        name = f"python -m {module}"
        super().__init__(name, description=description, epilog=examples, allow_abbrev=False, formatter_class=form)

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        options, rest = self.parse_known_intermixed_args(words)
        for word in rest:
            if word.startswith("-"):
                self.error(unknown("option", word.partition("=")[0], self._option_string_actions))
            self.error(f"one word too many: {word!r}")
        return options

    def error(self, message: str) -> NoReturn:
        raise EmulonError(f"{message} (see {self.prog} --help)")


def whole(least: int) -> Callable[[str], int]:
    """A parser of whole numbers, `least` or more."""

    def read(word: str) -> int:
        if not word.isdecimal() or int(word) < least:
            raise argparse.ArgumentTypeError(f"{word} is not a whole number, {least} or more")
        return int(word)

    return read


def run_script(module: str, main: Callable[[Sequence[str]], int], words: Sequence[str]) -> int:
    """The exit code of `main`; on an error one line on stderr, and 2 for a bad request, 1 for work that failed, 130 for
    an interrupt."""
    try:
        return main(words)
    except (EmulonError, OSError) as error:
        print(f"{module}: {' '.join(str(error).split())}", file=sys.stderr)
        return 1 if isinstance(error, WorkFailed) else 2
    except KeyboardInterrupt:
        print(f"{module}: stopped", file=sys.stderr)
        return 130


class Progress:
    """Prints a line on stderr every few seconds."""

    def __init__(self, name: str) -> None:
        self.name, self.last = name, -math.inf

    def __call__(self, what: str, done: float) -> None:
        if time.monotonic() - self.last >= PAUSE:
            self.last = time.monotonic()
            print(f"{self.name}: {what}, {done:.0%}", file=sys.stderr, flush=True)
