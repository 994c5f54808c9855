"""Mutation testing: plants small faults in a package, one by one, and records which of them the tests notice.

    nice -n 19 python tests/mutation/mutate.py src/emulon/certify tests/certify tests/softmax --out faults.jsonl
        [--only REGEX of functions] [--again: what survived before]

The modules are imported once. Every test runs once with a trace of the lines that it reaches; a fault is planted in a
fork, in place, and meets the tests that reach its line, the quickest first, until one fails. A fault that takes far
longer than its tests do counts as noticed. Faults on record in --out are not tried again. Type checks at run time are
off. `mutate.py --table FILE` counts, and lists survivors without a reason in `exceptions.toml`.
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
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from faults import Fault, code_of, faults

# Seconds: of tests a fault, and what a fault may take beyond twice its tests' own time.
BUDGET, GRACE = 4.0, 3.0
SURVIVED = ("survived", "no test comes here")
SOURCE = Path(__file__).parents[2] / "src" / "emulon"
EXCEPTIONS = Path(__file__).with_name("exceptions.toml")
Coverage = dict[str, tuple[float, set[tuple[str, int]]]]


class Mutate:
    """A pytest plugin that plants faults instead of running the collected tests."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.files = [
            file.resolve()
            for source in options.sources
            for file in (sorted(source.glob("*.py")) if source.is_dir() else [source])
        ]

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        gc.unfreeze()  # objects that `conftest` has frozen are not found
        items = {item.nodeid: item for item in session.items}
        prepare(session.items)
        os.environ["EMULON_CACHE"] = "off"  # its key has no fault in it
        names = {str(file) for file in self.files}
        coverage, imported = in_fork(lambda: traced(session.items, names))
        for name in imported:  # now, not once more for every fault
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        functions: dict[tuple[str, str], list[FunctionType]] = {}
        for one in gc.get_objects():
            if type(one) is FunctionType and one.__code__.co_filename in names:
                functions.setdefault((one.__code__.co_filename, one.__code__.co_qualname), []).append(one)
        gc.freeze()  # a fork that collects garbage would copy all of it
        print(f"{len(coverage)} of {len(items)} tests pass, {sum(s for s, _ in coverage.values()):.0f} s", flush=True)
        quickest = items[min(coverage, key=lambda name: coverage[name][0])]
        if not in_fork(lambda: passes(quickest, None)):
            raise SystemExit(f"{quickest.nodeid} fails in a fork without a fault: nothing can be tried")
        again = SURVIVED if self.options.again else ()
        known = {(each["file"], each["fault"]) for each in records(self.options.out) if each["said"] not in again}
        sources = {file: file.read_text() for file in self.files}
        chosen = [
            (file, fault)
            for file, source in sources.items()
            for fault in faults(source)
            if re.search(self.options.only, fault.owner)
        ]
        for file, fault in chosen:
            if (shown(file), fault.name) not in known:
                self.try_fault(fault, file, sources[file], functions, items, coverage)
        return True

    def try_fault(
        self, fault: Fault, file: Path, source: str, functions: Any, items: dict[str, Any], coverage: Coverage
    ) -> None:
        chosen = tests_of(fault, str(file), coverage)
        started, seconds = time.monotonic(), sum(coverage[name][0] for name in chosen)
        tests = [items[name] for name in chosen]
        said = "no test comes here"
        if chosen:
            said = in_fork(lambda: outcome(fault, file, source, functions, tests), 2 * seconds + GRACE)
        record = {"file": shown(file), "fault": fault.name, "kind": fault.kind, "owner": fault.owner, "said": said}
        with self.options.out.open("a") as out:
            out.write(json.dumps(record | {"seconds": round(time.monotonic() - started, 2)}, ensure_ascii=False) + "\n")


def shown(file: Path) -> str:
    return str(file.relative_to(SOURCE)) if file.is_relative_to(SOURCE) else file.name


def prepare(items: list[pytest.Item]) -> None:
    """Set up session fixtures that take half a minute once for all forks."""
    for item in items:
        if "programs" in getattr(item, "fixturenames", ()):
            item.session._setupstate.setup(item)
            with contextlib.suppress(KeyError):  # `tmp_path` wants the outcome of a test, and there was none
                item.session._setupstate.teardown_exact(item.session)
            break
    clear_caches(gc.get_objects())


def clear_caches(objects: Iterable[Any]) -> None:
    for one in objects:
        if type(one) is functools._lru_cache_wrapper and str(one.__module__).startswith("emulon"):
            one.cache_clear()


def tests_of(fault: Fault, file: str, coverage: Coverage) -> list[str]:
    """The tests that reach a fault's lines, the quickest first, within the budget."""
    lines, constant = set(range(fault.start[0], fault.end[0] + 1)), fault.owner.startswith("=")
    reaching = [
        (seconds, name)
        for name, (seconds, seen) in coverage.items()
        if any(where == file and (constant or line in lines) for where, line in seen)
    ]
    chosen, total = [], 0.0
    for seconds, name in sorted(reaching):
        if total and total + seconds > BUDGET:
            break
        chosen.append(name)
        total += seconds
    return chosen


def traced(items: list[pytest.Item], files: set[str]) -> tuple[Coverage, list[str]]:
    """(seconds, lines) of every test that passes, and the names of all modules imported afterwards."""
    coverage: Coverage = {}
    for item, after in zip(items, [*items[1:], None], strict=True):
        seen: set[tuple[str, int]] = set()

        def of_line(frame: FrameType, event: str, _: Any, seen: set[tuple[str, int]] = seen) -> Any:
            seen.add((frame.f_code.co_filename, frame.f_lineno))
            return of_line

        def of_call(frame: FrameType, event: str, _: Any, of_line: Any = of_line) -> Any:
            return of_line if frame.f_code.co_filename in files else None

        # Cached results would be computed in the first test alone.
        modules = [vars(module) for name, module in list(sys.modules.items()) if name.startswith("emulon")]
        clear_caches(one for module in modules for one in list(module.values()))
        started = time.process_time()
        sys.settrace(of_call)
        good = passes(item, after)
        sys.settrace(None)
        if good:
            coverage[item.nodeid] = time.process_time() - started, seen
    return coverage, list(sys.modules)


def passes(item: pytest.Item, after: pytest.Item | None) -> bool:
    from _pytest.runner import runtestprotocol

    return not any(report.failed for report in runtestprotocol(item, log=False, nextitem=after))


def outcome(fault: Fault, file: Path, source: str, functions: Any, items: list[pytest.Item]) -> str:
    """ "survived", or the name of the test that fails with the fault planted."""
    if not plant(fault, file, source, functions):
        return "cannot be planted"
    for item, after in zip(items, [*items[1:], None], strict=True):
        if not passes(item, after):
            return item.nodeid
    return "survived"


def plant(fault: Fault, file: Path, source: str, functions: Any) -> bool:
    """Replace the code of functions, or the value of a constant, in place."""
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


def in_fork(job: Callable[[], Any], seconds: float | None = None) -> Any:
    """The result of a job in its own process; "took too long" after so many CPU seconds, "died" without a result."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer"
        child = os.fork()
        if not child:
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1), os.dup2(quiet, 2)
            if seconds is not None:
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
    """The last record of every fault."""
    lines = map(json.loads, out.read_text().splitlines()) if out.exists() else []
    return list({(each["file"], each["fault"]): each for each in lines}.values())


def anywhere(record: dict[str, Any]) -> str:
    return f"{record['file']} {record['owner']} {record['fault'].split(' ', 1)[1]}"


def table(out: Path) -> None:
    """Print counts by file, and the survivors without a reason on record."""
    tried = [each for each in records(out) if each["said"] != "cannot be planted"]
    survivors = [each for each in tried if each["said"] in SURVIVED]
    counts, gone = (Counter(each["file"] for each in part) for part in (tried, survivors))
    for name, total in [*counts.items(), ("in all", counts.total())]:
        noticed = total - (gone.total() if name == "in all" else gone[name])
        print(f"{name:24} {noticed:5} of {total:5} noticed, {100 * noticed / max(total, 1):.1f} %")
    reasons = {fault for group in tomllib.loads(EXCEPTIONS.read_text())["exception"] for fault in group["faults"]}
    unexplained = [each for each in survivors if anywhere(each) not in reasons]
    print(f"{len(unexplained)} of {len(survivors)} survivors have no reason on record:")
    for each in unexplained:
        print(f"{each['fault'].split(' ', 1)[0]} {anywhere(each)} ({each['said']})")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--out", type=Path, default=Path("faults.jsonl"))
    parser.add_argument("--only", default="")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    if options.table:
        table(options.table)
        return 0
    options.sources = [path for path in options.paths if "src" in path.parts]
    tests = [str(path) for path in options.paths if "src" not in path.parts]
    flags = ["-n", "0", "-p", "no:cacheprovider", "-o", "addopts=-q", "--tb=no", *tests]
    return int(pytest.main(flags, plugins=[Mutate(options)]))


if __name__ == "__main__":
    sys.exit(main())
