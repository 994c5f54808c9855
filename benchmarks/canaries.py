"""Canaries in every engine that is installed, into results/canary/engines.json.

    python -m benchmarks.canaries [--only WORD …]     rows of engines whose name has the word are measured again

Rows of engines that are not measured again stay, with their own date.
"""

from __future__ import annotations

import argparse
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from emulon.canary import check
from emulon.canary.engines import ENGINES, Engine
from emulon.core.files import make_folder, provenance, read_json, write_json

FILE = Path(__file__).parents[1] / "results" / "canary" / "engines.json"
DISTRIBUTIONS = {"llama_cpp": "llama-cpp-python"}


def measured(engine: Engine) -> dict[str, Any]:
    """One engine's report, or in one line why there is none."""
    about: dict[str, Any] = {"engine": engine.name, "arithmetic": engine.arithmetic, **provenance()}
    distribution = DISTRIBUTIONS.get(engine.package, engine.package)
    try:
        about["version"] = f"{distribution} {version(distribution)}"
    except PackageNotFoundError:
        about["version"] = distribution
    try:
        report = check(engine.open, engine.name, engine.arithmetic, first=engine.offset)
    except Exception as error:  # whatever an engine that cannot run a checkpoint ends in
        return about | {"failed": f"{type(error).__name__}: {error}".splitlines()[0]}
    first = report.first_wrong
    found = {} if first is None else {"first": f"{first.operation}, layer {first.layer} ({first.canary})"}
    rows = [[row.canary, row.probe, round(row.kept, 1), round(row.proved, 1), row.wrong] for row in report.rows]
    return about | found | {"rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[""], metavar="WORD")
    words = parser.parse_args().only
    make_folder(FILE.parent)
    kept = {one["engine"]: one for one in (read_json(FILE) if FILE.exists() else [])}
    for name, engine in ENGINES.items():
        if engine.installed and any(word in name for word in words):
            kept[name] = measured(engine)
            print(f"{name}: {kept[name].get('failed') or kept[name].get('first', 'no fault')}", flush=True)
            write_json(FILE, [kept[each] for each in ENGINES if each in kept])


if __name__ == "__main__":
    main()
