"""The list of GPU measurements, at a tiny size on the CPU: it shares, resumes, and begins nothing after its time."""

import dataclasses
import json

import pytest

from benchmarks import gpu, speedrun
from emulon.core.errors import EmulonError
from reproduce.claim import Scale, claim_named
from reproduce.learning import figure_3

TINY = {"features": 2, "points": 5, "width": 16, "heads": 2, "batch": 8, "evaluation_batch": 16, "device": "cpu"}
WIDTH = "learning-figure-3-width"


@pytest.fixture
def tiny(monkeypatch):
    track = speedrun.TRACKS["standard"].changed(**TINY, start_features=1, layers=1)
    monkeypatch.setattr(speedrun, "TRACKS", {"standard": track})
    monkeypatch.setattr(speedrun, "ADAM", track.changed(optimiser="adam"))
    monkeypatch.setattr(speedrun, "VARIANTS", {"4 heads": {"heads": 4}, "1 head": {"heads": 1}})
    training = figure_3.QUICK | {"steps": 2, "width": 8, "heads": 2}
    sizes = {"training": training, "widths": [4, 8], "datasets": 16, "seeds": 2}
    claim = dataclasses.replace(claim_named(WIDTH), scales={"gpu": Scale(1, sizes)})
    monkeypatch.setattr(gpu, "claim_named", lambda name: claim)


def run(out, *words):
    return gpu.main(["standard", "adam-rates", WIDTH, *words, "--steps", "2", "--seeds", "2", "--out", str(out)])


def test_jobs_are_measured_once_and_put_together(tiny, tmp_path, capsys, monkeypatch):
    assert run(tmp_path, "--minutes", "9", "--processes", "1") == 0
    said = capsys.readouterr().out
    assert said.count("adam at ") == 5 and f"{WIDTH}: " in said and "no record" in said
    record = json.loads((tmp_path / "bench" / "speedrun.json").read_text())["standard"]
    assert [each["seed"] for each in record["attempts"]] == [0, 1]
    result = json.loads((tmp_path / "claims" / f"{WIDTH}.gpu.json").read_text())
    assert len(result["numbers"]["width"]) == 4 and "missing" not in result["numbers"]
    monkeypatch.setattr(speedrun, "fit", lambda *_, **__: pytest.fail("trained again"))
    monkeypatch.setattr("reproduce.learners.fit", lambda *_, **__: pytest.fail("trained again"))
    assert run(tmp_path, "--minutes", "9", "--processes", "1") == 0
    assert capsys.readouterr().out.count("adam at ") == 5


def test_another_machine_goes_on_with_what_an_archive_holds(tiny, tmp_path, capsys, monkeypatch):
    file = tmp_path / "parts.tar"
    jobs = ["variants", WIDTH, "--minutes", "9", "--processes", "1", "--steps", "2", "--archive", str(file)]
    assert gpu.main([*jobs, "--out", str(tmp_path / "first")]) == 0
    found = capsys.readouterr().out
    assert found.count("1 head: after d") == found.count("4 heads: after d") == 1
    monkeypatch.setattr(speedrun, "fit", lambda *_, **__: pytest.fail("trained again"))
    assert gpu.main([*jobs[:1], *jobs[2:], "--out", str(tmp_path / "second")]) == 0
    assert capsys.readouterr().out == "".join(line for line in found.splitlines(True) if ": after d" in line)
    results = [tmp_path / name / "claims" / f"{WIDTH}.gpu.json" for name in ("first", "second")]
    assert results[0].read_text() == results[1].read_text()


def test_a_file_that_is_no_archive_is_refused_and_left_alone(tmp_path):
    (tmp_path / "parts.tar").write_text("no archive")
    with pytest.raises(EmulonError, match=r"parts\.tar is not an archive of finished parts"):
        gpu.main(["variants", "--minutes", "0", "--out", str(tmp_path), "--archive", str(tmp_path / "parts.tar")])
    assert (tmp_path / "parts.tar").read_text() == "no archive"


def test_after_its_time_nothing_is_begun_and_no_result_is_written(tmp_path, capsys):
    words = ["standard", "algoformer-figure-2", "learning-figure-4", "--minutes", "0", "--processes", "2"]
    assert gpu.main([*words, "--scale", "small", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "no attempt of standard was finished" in said and said.count("parts were not measured") == 2
    assert not list(tmp_path.glob("claims/*.json")) and not (tmp_path / "bench" / "speedrun.json").exists()


def test_a_job_that_crashes_leaves_the_others_to_do(tiny, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(speedrun, "speedrun", lambda *_, **__: 1 / 0)
    assert run(tmp_path, "--minutes", "9", "--processes", "1") == 1
    said = capsys.readouterr()
    assert "crashed: standard" in said.err and said.out.count("adam at ") == 5


def test_jobs_have_a_gpu_scale_and_unknown_ones_are_refused(tmp_path):
    assert all("gpu" in claim_named(name).scales for name in gpu.CLAIMS)
    with pytest.raises(EmulonError, match="did you mean standard"):
        gpu.main(["standart", "--minutes", "1", "--out", str(tmp_path)])
