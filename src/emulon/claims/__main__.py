"""`python -m emulon.claims NAME … [--scale gpu] [--seed 0] [--processes 1] [--minutes M] [--out results]`.

It measures with torch alone, for machines that have a GPU and neither the command line's packages nor a plotting
library. The JSON files it writes are those of `emulon reproduce`, which draws figures and index from them elsewhere:
`emulon reproduce --figures`. With --minutes no part is begun after so many of them, and the result says what is
missing; started again, it goes on, and with --minutes 0 it puts together what there is.
"""

from __future__ import annotations

import math
import sys
import time
from functools import partial
from pathlib import Path
from typing import cast

from emulon.claims.claim import SCALES, ScaleName
from emulon.claims.record import measure, write
from emulon.claims.registry import claim_named
from emulon.errors import EmulonError, unknown

DEFAULTS = {"--scale": "gpu", "--seed": "0", "--processes": "1", "--minutes": "", "--out": "results"}


def main(words: list[str]) -> int:
    """0 when done, 2 for a request that makes no sense."""
    try:
        names, options = parse(words)
        claims = [claim_named(name) for name in names]
        scale, results = cast(ScaleName, options["--scale"]), Path(options["--out"])
        seed, processes = int(options["--seed"]), int(options["--processes"])
        deadline = time.time() + 60 * int(options["--minutes"]) if options["--minutes"] else math.inf
        for claim in claims:
            record = measure(claim, scale, seed, results, partial(report_progress, claim.name), processes, deadline)
            print(f"{write(record, results)}: {record.verdict(claim).ours}, {record.seconds:.0f} s", flush=True)
    except EmulonError as error:
        print(f"emulon.claims: {error}", file=sys.stderr)
        return 2
    return 0


def parse(words: list[str]) -> tuple[list[str], dict[str, str]]:
    """Names, and options with their values."""
    names, options, rest = [], dict(DEFAULTS), iter(words)
    for word in rest:
        if not word.startswith("-"):
            names.append(word)
        elif word in options and (value := next(rest, None)) is not None:
            options[word] = value
        else:
            raise EmulonError(unknown("option", word, DEFAULTS) if word not in options else f"{word} wants a value")
    if options["--scale"] not in SCALES:
        raise EmulonError(unknown("scale", options["--scale"], SCALES))
    for name, least in (("--seed", 0), ("--processes", 1), ("--minutes", 0)):
        if options[name] and (not options[name].isdecimal() or int(options[name]) < least):
            raise EmulonError(f"{name} wants a whole number from {least} on, got {options[name]!r}")
    if not names:
        raise EmulonError("which claim? emulon reproduce lists them all")
    return names, options


def report_progress(name: str, what: str, done: float) -> None:
    print(f"{name}: {what}, {done:.0%}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
