"""Which small faults of a room do its tests notice? Planted one by one, in a fork of one process that has all imported.

    nice -n 19 python tests/mutation/hunt.py src/emulon/certify tests/certify tests/softmax --out faults.jsonl
        [--terms: only what drops or halves a term] [--only REGEX of functions] [--again: what went unnoticed before]
        [--budget SECONDS of tests that a fault meets]

Every test is first run with a trace of the lines it comes to. A fault then meets the tests that come to its line, the
quickest first, until one fails; a fault that takes far longer than its tests do counts as noticed. Type checks at run
time are off. What is on record in --out is not asked again; `python tests/mutation/hunt.py --table FILE` counts, and
lists what went unnoticed, or what of terms did (--terms), and has no reason in `exceptions.toml` beside this file.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import importlib
import json
import os
import pickle
import re
import resource
import signal
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from faults import TERMS, Fault, code_of, faults

# Seconds: of tests that a fault meets, and what it may take beyond twice its tests' own time.
BUDGET, GRACE = 4.0, 3.0
UNNOTICED = ("survived", "no test comes here")
SOURCE = Path(__file__).parents[2] / "src" / "emulon"
EXCEPTIONS = Path(__file__).with_name("exceptions.toml")
Covered = dict[str, tuple[float, set[tuple[str, int]]]]
Functions = dict[tuple[str, str], list[FunctionType]]


class Hunt:
    """A pytest plugin: in place of running the collected tests it plants faults, and runs those that may notice."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.files = [
            file.resolve()
            for source in options.sources
            for file in (sorted(source.glob("*.py")) if source.is_dir() else [source])
        ]
        self.out: Path = options.out
        self.again = UNNOTICED if options.again else ()

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        gc.unfreeze()  # what `conftest` has frozen cannot be found, nor have a fault planted
        items = {item.nodeid: item for item in session.items}
        warm(session.items)
        os.environ["EMULON_CACHE"] = (
            "off"  # it knows nothing of faults: what one has made, or none, would be read by all
        )
        covered, imported = in_fork(lambda: baseline(session.items, {str(file) for file in self.files}))
        import_all(imported)
        self.functions = functions_of({str(file) for file in self.files})
        gc.freeze()  # nothing more is looked for, and a fork that collects garbage would copy all of it
        print(
            f"{len(covered)} of {len(items)} tests pass, {sum(time for time, _ in covered.values()):.0f} s", flush=True
        )
        soonest = items[min(covered, key=lambda name: covered[name][0])]
        if not in_fork(lambda: passes(soonest, None)):
            raise SystemExit(
                f"{soonest.nodeid} fails in a fork of its own, with no fault planted: nothing can be asked"
            )
        known = {(each["file"], each["fault"]) for each in records(self.out) if each["said"] not in self.again}
        for file in self.files:
            source = file.read_text()
            for fault in faults(source):
                if (room_of(file), fault.name) in known or (self.options.terms and fault.kind not in TERMS):
                    continue
                if self.options.only and not re.search(self.options.only, fault.owner):
                    continue
                self.put(fault, file, source, items, covered)
        return True

    def put(self, fault: Fault, file: Path, source: str, items: dict[str, Any], covered: Covered) -> None:
        chosen = those_that_come_to(fault, str(file), covered, self.options.budget)
        started, seconds = time.monotonic(), sum(covered[name][0] for name in chosen)
        said = "no test comes here"
        if chosen:
            said = in_fork(
                lambda: met(fault, file, source, self.functions, [items[name] for name in chosen]), 2 * seconds + GRACE
            )
        record = {"file": room_of(file), "fault": fault.name, "kind": fault.kind, "owner": fault.owner, "said": said}
        with self.out.open("a") as out:
            out.write(json.dumps(record | {"seconds": round(time.monotonic() - started, 2)}, ensure_ascii=False) + "\n")


def room_of(file: Path) -> str:
    return str(file.relative_to(SOURCE)) if file.is_relative_to(SOURCE) else file.name


def warm(items: list[pytest.Item]) -> None:
    """Programs that another process compiles take half a minute: once for all, and what it leaves in caches is gone."""
    for item in items:
        if "programs" in getattr(item, "fixturenames", ()):
            item.session._setupstate.setup(item)
            # All but the session: what stayed of this test would make any other fail that is the first in its fork.
            with contextlib.suppress(KeyError):  # `tmp_path` asks how the test went, which there was none of
                item.session._setupstate.teardown_exact(item.session)
            break
    forget(gc.get_objects())


def forget(objects: Iterable[Any]) -> None:
    """What emulon's functions have kept of their answers."""
    for one in objects:
        if type(one) is functools._lru_cache_wrapper and str(one.__module__).startswith("emulon"):
            one.cache_clear()


def those_that_come_to(fault: Fault, file: str, covered: Covered, budget: float) -> list[str]:
    lines = set(range(fault.start[0], fault.end[0] + 1))
    constant = fault.owner.startswith("=")
    there = [
        (seconds, name)
        for name, (seconds, seen) in covered.items()
        if any(where == file and (constant or line in lines) for where, line in seen)
    ]
    chosen, total = [], 0.0
    for seconds, name in sorted(there):
        if total and total + seconds > budget:
            break
        chosen.append(name)
        total += seconds
    return chosen


def import_all(names: list[str]) -> None:
    """What functions import as they run: once for all, and not once more for every fault."""
    for name in names:
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def baseline(items: list[pytest.Item], files: set[str]) -> tuple[Covered, list[str]]:
    """(seconds, lines) of every test that passes, and the names of all modules that are there afterwards."""
    covered: Covered = {}
    for item, after in zip(items, [*items[1:], None], strict=True):
        seen: set[tuple[str, int]] = set()

        def of_line(frame: FrameType, event: str, _: Any, seen: set[tuple[str, int]] = seen) -> Any:
            seen.add((frame.f_code.co_filename, frame.f_lineno))
            return of_line

        def of_call(frame: FrameType, event: str, _: Any, of_line: Any = of_line) -> Any:
            return of_line if frame.f_code.co_filename in files else None

        # What is computed once for all would else be seen in the first test alone.
        rooms = [vars(module) for name, module in list(sys.modules.items()) if name.startswith("emulon")]
        forget(one for room in rooms for one in list(room.values()))
        started = time.process_time()
        sys.settrace(of_call)
        good = passes(item, after)
        sys.settrace(None)
        if good:
            covered[item.nodeid] = time.process_time() - started, seen
    return covered, list(sys.modules)


def passes(item: pytest.Item, after: pytest.Item | None) -> bool:
    from _pytest.runner import runtestprotocol

    return not any(report.failed for report in runtestprotocol(item, log=False, nextitem=after))


def functions_of(files: set[str]) -> Functions:
    """All functions there are of these files, by file and qualified name, decorated or not."""
    found: Functions = {}
    for one in gc.get_objects():
        if type(one) is FunctionType and one.__code__.co_filename in files:
            found.setdefault((one.__code__.co_filename, one.__code__.co_qualname), []).append(one)
    return found


def met(fault: Fault, file: Path, source: str, functions: Functions, items: list[pytest.Item]) -> str:
    """What the tests say with the fault planted: "survived", or the name of the one that fails."""
    if not plant(fault, file, source, functions):
        return "cannot be planted"
    for item, after in zip(items, [*items[1:], None], strict=True):
        if not passes(item, after):
            return item.nodeid
    return "survived"


def plant(fault: Fault, file: Path, source: str, functions: Functions) -> bool:
    """In place: functions get other code, wherever they are already known; constants another value, likewise."""
    planted = compile(fault.planted(source), str(file), "exec", dont_inherit=True)
    if fault.owner.startswith("="):
        return plant_constant(fault.owner[1:], file, planted)
    code, known = code_of(planted, fault.owner), functions.get((str(file), fault.owner), [])
    if code is None or any(len(code.co_freevars) != len(each.__code__.co_freevars) for each in known):
        return False
    for each in known:
        each.__code__ = code
    return bool(known)


def plant_constant(name: str, file: Path, planted: Any) -> bool:
    home = next(each for each in list(sys.modules.values()) if getattr(each, "__file__", None) == str(file))
    fresh = {"__name__": home.__name__, "__file__": str(file)}
    exec(planted, fresh)
    old = vars(home)[name]
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith(("emulon", "test_")) and vars(module).get(name) is old:
            setattr(module, name, fresh[name])
    return True


def in_fork(job: Any, seconds: float | None = None) -> Any:
    """What a job returns in a process of its own; "took too long" where that is so, "died" where it says nothing."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer"
        child = os.fork()
        if not child:
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1), os.dup2(quiet, 2)
            if seconds is not None:
                # Of the processor, not of the clock: others may be at work.
                resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time() + seconds) + 1,) * 2)
            try:
                said = job()
            except BaseException as error:
                said = f"stopped: {type(error).__name__}"
            answer.write_bytes(pickle.dumps(said))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL):
            return "took too long"
        return pickle.loads(answer.read_bytes()) if answer.exists() else "died"


def records(out: Path) -> list[dict[str, Any]]:
    """The last word on every fault."""
    lines = map(json.loads, out.read_text().splitlines()) if out.exists() else []
    return list({(each["file"], each["fault"]): each for each in lines}.values())


def explained() -> dict[str, str]:
    """The reason why a fault cannot be noticed, or need not be, by what `anywhere` calls it."""
    groups = tomllib.loads(EXCEPTIONS.read_text())["exception"] if EXCEPTIONS.exists() else []
    return {fault: group["why"] for group in groups for fault in group["faults"]}


def anywhere(record: dict[str, Any]) -> str:
    """A fault, wherever in its function it stands: lines move."""
    return f"{record['file']} {record['owner']} {record['fault'].split(' ', 1)[1]}"


def table(out: Path, terms: bool) -> None:
    """Counts by file, all faults and those of terms alone, and what went unnoticed without a reason on record."""
    asked = [each for each in records(out) if each["said"] != "cannot be planted"]
    missed = [each for each in asked if each["said"] in UNNOTICED]
    for title, kinds in (("all", None), ("terms", TERMS)):
        counts = [
            Counter(each["file"] for each in part if kinds is None or each["kind"] in kinds) for part in (asked, missed)
        ]
        for name in [*counts[0], None]:
            total, gone = (counts[k][name] if name else counts[k].total() for k in (0, 1))
            share = 100 * (total - gone) / max(total, 1)
            print(f"{title:6} {name or 'in all':24} {total - gone:5} of {total:5} noticed, {share:.1f} %")
    reasons = explained()
    missed = [each for each in missed if each["kind"] in TERMS or not terms]
    open_ones = [each for each in missed if anywhere(each) not in reasons]
    print(
        f"{len(missed) - len(open_ones)} of {len(missed)} that went unnoticed have a reason on record; these have none:"
    )
    for each in open_ones:
        print(f"{each['fault'].split(' ', 1)[0]} {anywhere(each)} ({each['said']})")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--out", type=Path, default=Path("faults.jsonl"))
    parser.add_argument("--terms", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--budget", type=float, default=BUDGET)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    if options.table:
        table(options.table, options.terms)
        return 0
    options.sources = [path for path in options.paths if "src" in path.parts]
    tests = [str(path) for path in options.paths if "src" not in path.parts]
    flags = ["-n", "0", "-p", "no:cacheprovider", "-o", "addopts=-q", "--tb=no", *tests]
    return int(pytest.main(flags, plugins=[Hunt(options)]))


if __name__ == "__main__":
    sys.exit(main())
