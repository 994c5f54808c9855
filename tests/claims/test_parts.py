"""A claim that is stopped goes on where it was, and says so."""

import json

import pytest

from emulon.claims.claim import Claim, Scale, Verdict
from emulon.claims.figure import Figure
from emulon.claims.record import PARTS, measure, path_of, write


class Stopped(Exception):
    pass


def counting(stop_at: int, measured: list[int]) -> Claim:
    """Squares 0 to 3, in parts; the process dies before one of them."""

    def square(number: int) -> dict:
        if number == stop_at:
            raise Stopped
        measured.append(number)
        return {"square": number**2}

    def run(setting):
        return {"squares": [setting.part(str(k), lambda k=k: square(k))["square"] for k in range(4)]}

    scales = {"small": Scale(0.1, {"seeds": 1})}
    return Claim("squares", "", "", "", scales, run, lambda n: Verdict.that(True, "", ""), lambda n: Figure([]))


def stopped_half_way(results) -> None:
    with pytest.raises(Stopped):
        measure(counting(2, []), "small", 0, results)


def test_what_was_measured_before_is_not_measured_again_and_its_seconds_count(tmp_path):
    stopped_half_way(tmp_path)
    path = path_of("squares", "small", tmp_path, PARTS)
    kept = json.loads(path.read_text())
    for part in kept["parts"].values():
        part["seconds"] = 100.0
        part["about"] |= {"commit": "an older one", "machine": "another machine"}
    path.write_text(json.dumps(kept))
    measured: list[int] = []
    record = measure(counting(-1, measured), "small", 0, tmp_path)
    assert measured == [2, 3] and record.numbers == {"squares": [0, 1, 4, 9]}
    assert record.seconds > 200 and record.about["commit"].startswith("an older one, ")
    assert record.about["machine"].startswith("another machine; then ")
    write(record, tmp_path)
    assert not path.exists()


@pytest.mark.parametrize("seed, content", [(1, None), (0, "{"), (0, "[]")])
def test_parts_of_another_run_or_without_sense_are_forgotten(tmp_path, seed, content):
    stopped_half_way(tmp_path)
    if content is not None:
        path_of("squares", "small", tmp_path, PARTS).write_text(content)
    measured: list[int] = []
    assert measure(counting(-1, measured), "small", seed, tmp_path).numbers == {"squares": [0, 1, 4, 9]}
    assert measured == [0, 1, 2, 3]
