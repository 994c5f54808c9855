"""A claim that is stopped goes on where it was, and says so; processes share its parts."""

import json
import os
import time
from functools import partial

import pytest

from emulon.core.files import locked
from emulon.report.figure import Figure
from reproduce.claim import Claim, Scale, Setting, Verdict
from reproduce.record import PARTS, Parts, measure, path_of, write


class Stopped(Exception):
    pass


def counting(stop_at: int, measured: list[int]) -> Claim:
    """Squares 0 to 3, in parts; the process dies before one of them."""

    def square(number: int, setting: Setting) -> dict:
        if number == stop_at:
            raise Stopped
        measured.append(number)
        return {"square": number**2}

    def run(setting):
        found = setting.parts({str(k): partial(square, k) for k in range(4)})
        return {"squares": [each["square"] for each in found.values()]}

    scales = {"small": Scale(0.1, {"seeds": 1})}
    return Claim("squares", "", "", "", scales, run, lambda n: Verdict.that(True, "", ""), lambda n: Figure([]))


def stopped_half_way(results) -> None:
    with pytest.raises(Stopped):
        measure(counting(2, []), "small", 0, results)


def test_what_was_measured_before_is_not_measured_again_and_its_seconds_count(tmp_path):
    stopped_half_way(tmp_path)
    folder = path_of("squares", "small", tmp_path, PARTS)
    for path in folder.glob("*.json"):
        part = json.loads(path.read_text())
        part["seconds"] = 100.0
        part["about"] |= {"commit": "an older one", "machine": "another machine"}
        path.write_text(json.dumps(part))
    measured: list[int] = []
    record = measure(counting(-1, measured), "small", 0, tmp_path)
    assert measured == [2, 3] and record.numbers == {"squares": [0, 1, 4, 9]}
    assert record.seconds > 200 and record.about["commit"].startswith("an older one, ")
    assert record.about["machine"].startswith("another machine; then ")
    write(record, tmp_path)
    assert not folder.exists()


def test_after_the_deadline_no_part_is_begun_and_the_result_says_what_is_missing(tmp_path):
    stopped_half_way(tmp_path)
    claim = counting(-1, [])
    record = measure(claim, "small", 0, tmp_path, deadline=time.time() - 1)
    assert record.numbers == {"squares": [0, 1], "missing": ["2", "3"]}
    assert record.verdict(claim).reason.endswith("not measured: 2, 3")
    write(record, tmp_path)
    assert measure(claim, "small", 0, tmp_path).numbers == {"squares": [0, 1, 4, 9]}  # the parts were kept
    nothing = measure(claim, "small", 0, tmp_path / "empty", deadline=time.time() - 1)
    assert nothing.verdict(claim).state == "cannot be tested here"


@pytest.mark.parametrize("seed, content", [(1, None), (0, "{"), (0, "[]"), (0, '{"run": 1}')])
def test_parts_of_another_run_or_without_sense_are_forgotten(tmp_path, seed, content):
    stopped_half_way(tmp_path)
    if content is not None:
        for path in path_of("squares", "small", tmp_path, PARTS).glob("*.json"):
            path.write_text(content)
    measured: list[int] = []
    assert measure(counting(-1, measured), "small", seed, tmp_path).numbers == {"squares": [0, 1, 4, 9]}
    assert measured == [0, 1, 2, 3]


def test_a_part_that_another_process_is_at_comes_last(tmp_path):
    """The lock of the second part is held by a child for half a second: this process does the third before."""
    parts = Parts(counting(-1, []), "small", 0, tmp_path)
    ready, child_ready = os.pipe()
    parts.folder.mkdir(parents=True)
    if not (child := os.fork()):
        with locked(parts.folder / ".b.lock"):
            os.write(child_ready, b"!")
            time.sleep(0.5)
        os._exit(0)
    os.read(ready, 1)
    order: list[str] = []

    def taken(name: str) -> dict:
        order.append(name)
        return {"name": name}

    found = parts({name: partial(taken, name) for name in "abc"})
    os.waitpid(child, 0)
    assert order == ["a", "c", "b"] and list(found) == ["a", "b", "c"]


def test_what_another_process_measured_meanwhile_is_read(tmp_path):
    first, second = (Parts(counting(-1, []), "small", 0, tmp_path, processes=2) for _ in range(2))
    first({"a": lambda: {"by": "first"}})
    found = second({"a": lambda: {"by": "second"}, "b": lambda: {"by": "second"}})
    assert found == {"a": {"by": "first"}, "b": {"by": "second"}}
    assert second.about()["machine"].endswith("2 at once")
