"""A sweep finishes every run, whatever happens to its processes, and leaves alone what is finished."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from emulon.core.errors import EmulonError
from emulon.training import RunFolder, train
from emulon.training.grid import BadGrid, Grid, Run, read_grid, read_words
from emulon.training.sweep import Inline, Job, Local, NoCluster, Slurm, sweep, sweep_stacked

BASE = {"features": 3, "points": 7, "noise": 0.5, "width": 16, "heads": 2, "batch": 8, "evaluation_batch": 32}
BASE |= {"lr": 1e-3, "log_every": 1, "device": "cpu", "threads": 1, "layers": 1, "steps": 14, "checkpoint_every": 7}


def varying(**vary) -> Grid:
    return Grid({name: value for name, value in BASE.items() if name not in vary}, vary)


def final_weights(folder: Path) -> dict:
    return load_file(sorted((folder / "checkpoints").iterdir())[-1])


def assert_as_uninterrupted(run: Run, folder: Path) -> None:
    train(run.config, folder)
    here, there = final_weights(run.folder), final_weights(folder)
    assert here.keys() == there.keys() and all(here[name].equal(there[name]) for name in here)
    lines = [[(line["step"], line.get("loss")) for line in RunFolder(each).metrics()] for each in (run.folder, folder)]
    assert lines[0] == lines[1]


class Accident:
    """Sends a run's process a signal, once, when the run is half-way."""

    def __init__(self, run: Run, number: signal.Signals) -> None:
        self.run, self.number, self.happened_at = run, number, 0

    def __call__(self) -> None:
        steps = self.run.steps_done
        if not self.happened_at and steps >= 60:
            self.happened_at = steps
            os.kill(int((self.run.folder / ".lock.pid").read_text()), self.number)


def test_a_killed_run_and_a_preempted_one_end_with_the_bits_of_uninterrupted_ones(tmp_path):
    pytest.importorskip("submitit", reason="pip install 'emulon[cluster]'")
    grid = varying(layers=[1, 2], steps=[300], checkpoint_every=[20])
    runs = grid.runs(tmp_path / "sweep")
    accidents = [Accident(runs[0], signal.SIGKILL), Accident(runs[1], signal.SIGUSR2)]

    def watch(what: str, done: float) -> None:
        for accident in accidents:
            accident()

    assert sweep(runs, Local(tmp_path / "sweep"), jobs=2, report_progress=watch) == {}
    assert len(runs) == 2 and all(run.finished for run in runs)
    for number, accident in enumerate(accidents):
        assert 60 <= accident.happened_at < 300, "the run was over before it could be interrupted"
        assert json.loads((accident.run.folder / "curve.json").read_text())["from_step"] >= accident.happened_at
        assert_as_uninterrupted(accident.run, tmp_path / f"whole-{number}")


def test_a_sweep_started_again_finishes_what_is_unfinished_and_leaves_the_rest_alone(tmp_path, monkeypatch):
    grid = varying(seed=[0, 1, 2])
    runs = grid.runs(tmp_path)
    assert sweep(runs[:1], Inline()) == {}
    with monkeypatch.context() as patched:  # stopped in the second run, after its first checkpoint
        patched.setattr(RunFolder, "append", stop_at(10, RunFolder.append))
        with pytest.raises(KeyboardInterrupt):
            sweep(runs, Inline())
    assert [run.finished for run in runs] == [True, False, False] and runs[1].steps_done == 7
    before = (runs[0].folder / "curve.json").stat().st_mtime_ns
    again = grid.runs(tmp_path)
    assert sweep(again, Inline()) == {} and all(run.finished for run in again)
    assert (runs[0].folder / "curve.json").stat().st_mtime_ns == before
    assert json.loads((runs[1].folder / "curve.json").read_text())["from_step"] == 7
    assert_as_uninterrupted(runs[1], tmp_path / "whole")


def stop_at(step, real):
    def append(folder, record):
        if record["step"] == step:
            raise KeyboardInterrupt
        real(folder, record)

    return append


def test_stopped_by_hand_a_sweep_stops_its_jobs_and_says_one_line(tmp_path):
    pytest.importorskip("submitit", reason="pip install 'emulon[cluster]'")
    grid = varying(seed=[0], steps=[100_000])
    (tmp_path / "grid.json").write_text(json.dumps({"base": dict(grid.base), "grid": dict(grid.vary)}))
    words = ["train", str(tmp_path / "grid.json"), "--executor", "local", "--out", str(tmp_path / "out")]
    sweeping = subprocess.Popen([sys.executable, "-m", "emulon.cli", *words], stderr=subprocess.PIPE, text=True)
    (run,) = grid.runs(tmp_path / "out")
    while not run.steps_done and sweeping.poll() is None:
        time.sleep(0.1)
    job = int((run.folder / ".lock.pid").read_text())
    sweeping.send_signal(signal.SIGINT)
    assert sweeping.communicate(timeout=60)[1] == "emulon train: stopped\n" and sweeping.returncode == 130
    with pytest.raises(ProcessLookupError):
        for _ in range(300):  # it has been told to stop; on a busy machine it takes a moment
            os.kill(job, 0)
            time.sleep(0.1)


class Deadly:
    """An engine whose processes die so many times before one lives."""

    def __init__(self, deaths: int) -> None:
        self.deaths, self.starts = deaths, 0

    def submit(self, job: Job, slot: int) -> "Deadly":
        self.starts += 1
        self.dead = self.starts <= self.deaths
        self.reason = None if self.dead else job()
        return self

    def done(self) -> bool:
        return True

    def outcome(self) -> str | None:
        return self.reason

    def cancel(self) -> None:
        raise AssertionError("nothing is left to cancel")


def test_a_run_that_dies_is_started_again_up_to_a_limit(tmp_path):
    runs = varying(seed=[0]).runs(tmp_path)
    assert sweep(runs, Deadly(3), restarts=2) == {"seed=0": "its process died 3 times"}
    engine = Deadly(2)
    assert sweep(runs, engine, restarts=2) == {} and engine.starts == 3 and runs[0].finished


def test_a_run_that_has_to_stop_does_not_stop_the_others_and_is_not_started_again(tmp_path):
    runs = varying(lr=[1e30, 1e-3]).runs(tmp_path)
    reasons = sweep(runs, Inline())
    assert list(reasons) == ["lr=1e+30"] and "no longer finite" in reasons["lr=1e+30"] and runs[1].finished


def test_an_exception_in_a_job_is_told_with_its_log(tmp_path):
    pytest.importorskip("submitit", reason="pip install 'emulon[cluster]'")
    runs = varying(seed=[0]).runs(tmp_path)
    (runs[0].folder / "checkpoints").mkdir(parents=True)
    (runs[0].folder / "metrics.jsonl").mkdir()  # nobody expects a folder there
    reasons = sweep(runs, Local(tmp_path))
    assert reasons["seed=0"].startswith("IsADirectoryError") and "_log.err)" in reasons["seed=0"]


def test_two_jobs_never_train_one_run_at_the_same_time(tmp_path):
    """As when the jobs of a killed sweep outlive it: the second waits, finds the run finished and does nothing."""
    (run,) = varying(seed=[0], steps=[80]).runs(tmp_path)
    code = f"from emulon.training.sweep import Job; from emulon.training.grid import read_grid; \
from pathlib import Path; (run,) = read_grid(Path({str(tmp_path / 'grid.json')!r})).runs(Path({str(tmp_path)!r})); \
assert Job(run.config, run.folder)() == ''"
    base = {name: value for name, value in BASE.items() if name != "steps"}
    (tmp_path / "grid.json").write_text(json.dumps({"base": base, "grid": {"seed": [0], "steps": [80]}}))
    both = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in both:
        _, error = process.communicate(timeout=120)
        assert process.returncode == 0, error
    assert [line["step"] for line in RunFolder(run.folder).metrics() if line["kind"] == "train"] == list(range(1, 81))


FAKE = {
    # The last word is the batch script; it runs in the background, as a job of a real cluster would.
    "sbatch": """#!/bin/sh
for script; do :; done
(SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=1 SLURM_JOB_NODELIST=here SLURM_NODEID=0 SLURM_NTASKS=1 SLURM_PROCID=0 \
 SLURM_LOCALID=0 sh "$script" >/dev/null 2>&1; touch "$0.over") >/dev/null 2>&1 &
echo Submitted batch job 7
""",
    "srun": """#!/bin/sh
while [ "${1#--}" != "$1" ]; do case "$1" in *=*) shift;; --unbuffered) shift;; *) shift 2;; esac; done
exec "$@"
""",
    "sacct": """#!/bin/sh
state=RUNNING; [ -e "$(dirname "$0")/sbatch.over" ] && state=COMPLETED
printf 'JobID|State|NodeList\n7|%s|here\n' "$state"
""",
}


def test_slurm_is_given_the_job_with_its_settings(tmp_path, monkeypatch):
    """A Slurm of three shell scripts: what is tested is what we hand to submitit and take from it."""
    pytest.importorskip("submitit", reason="pip install 'emulon[cluster]'")
    for name, script in FAKE.items():
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    runs = varying(seed=[0]).runs(tmp_path / "sweep")
    engine = Slurm(tmp_path / "sweep", {"partition": "small", "gpus_per_node": 1, "timeout_min": 30}, 3)
    assert sweep(runs, engine) == {} and runs[0].finished
    (script,) = (tmp_path / "sweep" / "jobs").glob("*/7_submission.sh")
    for setting in ("--partition=small", "--gpus-per-node=1", "--time=30", "--signal=USR2@", "--job-name=emulon"):
        assert f"#SBATCH {setting}" in script.read_text()
    with pytest.raises(NoCluster, match="refuses these settings of Slurm: Unknown argument 'partitoin'"):
        Slurm(tmp_path / "sweep", {"partitoin": "small"}, 3)


def test_without_a_cluster_or_submitit_one_line_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoCluster, match="sbatch is not found; use --executor local"):
        Slurm(tmp_path, {}, 3)
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(NoCluster, match=r"pip install 'emulon\[cluster\]', or use --executor inline"):
        Local(tmp_path)


def test_a_grid_is_every_combination_with_the_recipes_own_values(tmp_path):
    grid = Grid({"recipe": "fast", "preset": "small"}, {"model": ["standard", "algoformer"], "seed": [0, 1]})
    runs = grid.runs(tmp_path)
    assert [run.name for run in runs][:3] == [
        "model=standard,seed=0",
        "model=standard,seed=1",
        "model=algoformer,seed=0",
    ]
    assert [run.config.optimiser.muon_lr for run in runs] == [0.005] * 4 and runs[0].config.optimiser.lr == 5e-4
    assert all((run.config.task.features, run.config.optimiser.optimiser) == (5, "muon") for run in runs)
    assert runs[1].values == {"model": "standard", "seed": 1} and runs[1].config.seed == 1
    assert not list(tmp_path.iterdir())


def test_what_a_run_costs_is_counted_without_doing_it(tmp_path):
    one, two = varying(layers=[1, 2]).runs(tmp_path)
    (parameters, operations), (more, twice) = one.learner_size(), two.learner_size()
    learner = one.config.make_learner(one.config.make_task())
    assert parameters == sum(p.numel() for p in learner.parameters()) and more > parameters
    # 3·2·(12·width²) for every token of the batch, and a little attention
    matrices = 6 * 12 * 16**2 * 13 * 8
    assert matrices < twice - operations < 1.3 * matrices


@pytest.mark.parametrize(
    ("words", "vary"),
    [
        (["seed=0,1", "lr=1e-3,1"], {"seed": [0, 1], "lr": [1e-3, 1.0]}),
        (["model=standard,looped"], {"model": ["standard", "looped"]}),
        (["zero-output=true,none"], {"zero_output": [True, None]}),
    ],
)
def test_words_say_what_varies(words, vary):
    assert read_words(words) == vary


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is not JSON"),
        ("[1]", "holds no grid"),
        ("{}", "nothing is given to vary"),
        ('{"base": {"steps": 3}}', "nothing is given to vary"),
        ('{"grid": {"seed": []}}', "no value of seed is given to vary"),
        ('{"grid": {"seed": 3}}', "what varies is a list of values, and seed is 3"),
        ('{"gird": {"seed": [1]}}', "did you mean grid?"),
        ('{"grid": {"sede": [1]}}', "did you mean seed?"),
        ('{"base": {"stesp": 1}, "grid": {"seed": [1]}}', "did you mean steps?"),
        ('{"base": {"seed": 1}, "grid": {"seed": [1, 2]}}', "seed is both fixed (1) and varied"),
        ('{"grid": {"seed": [1, 1]}}', "given twice"),
        ('{"grid": {"seed": ["one"]}}', "seed: 'one' is not a whole number"),
        ('{"grid": {"seed": [true]}}', "seed: True is not a whole number"),
        ('{"grid": {"model": ["standrad"]}}', "model=standrad: there is no model 'standrad'; did you mean standard?"),
        ('{"base": {"recipe": "fats"}, "grid": {"seed": [1]}}', "did you mean fast?"),
        ('{"base": {"preset": "smal"}, "grid": {"seed": [1]}}', "did you mean small?"),
        ('{"grid": {"heads": [8, 3]}}', "heads=3: 3 heads do not divide a width of 256"),
        ('{"base": {"model": "standard"}, "grid": {"loops": [2]}}', "loops=2: the model standard has no 'loops'"),
    ],
)
def test_a_grid_that_makes_no_sense_is_refused_before_anything_runs(tmp_path, text, reason):
    path = tmp_path / "grid.json"
    path.write_text(text)
    with pytest.raises(EmulonError, match=re.escape(reason)):
        read_grid(path).runs(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_holds_another_run_is_refused(tmp_path):
    sweep(varying(seed=[0]).runs(tmp_path), Inline())
    with pytest.raises(BadGrid, match="holds a run whose steps is 14, and here it is 15; choose another --out"):
        Grid(BASE | {"steps": 15}, {"seed": [0]}).runs(tmp_path)


def test_a_stack_leaves_the_folders_its_runs_would_have_left_alone(tmp_path):
    grid = varying(seed=[0, 1], lr=[1e-3, 1e-2], bias=[False])
    together, alone = grid.runs(tmp_path / "stack"), grid.runs(tmp_path / "alone")
    assert sweep_stacked(together) == {} and sweep(alone, Inline()) == {}
    for here, there in zip(together, alone, strict=True):
        one, other = final_weights(here.folder), final_weights(there.folder)
        assert one.keys() == other.keys() and RunFolder(here.folder).kept_steps() == [7, 14]
        for name in other:
            torch.testing.assert_close(one[name], other[name], rtol=1e-3, atol=2e-6, msg=name)
        files = [sorted(path.name for path in run.folder.iterdir()) for run in (here, there)]
        assert files[0] == files[1]
        lines = [RunFolder(run.folder).metrics() for run in (here, there)]
        losses = [[line.get("loss", line.get("error")) for line in each] for each in lines]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    record = json.loads((together[0].folder / "curve.json").read_text())
    assert record["stacked"] == 4 and record["config"] == together[0].config.options()


def test_a_stack_that_was_stopped_goes_on_to_the_same_bits(tmp_path, monkeypatch):
    grid = varying(seed=[0, 1])
    whole, broken = grid.runs(tmp_path / "whole"), grid.runs(tmp_path / "broken")
    sweep_stacked(whole)
    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "append", stop_at(10, RunFolder.append))
        with pytest.raises(KeyboardInterrupt):
            sweep_stacked(broken)
    assert sweep_stacked(broken) == {}
    for one, other in zip(whole, broken, strict=True):
        here, there = final_weights(one.folder), final_weights(other.folder)
        assert all(here[name].equal(there[name]) for name in here)
        assert [line["step"] for line in RunFolder(other.folder).metrics() if "loss" in line] == list(range(1, 15))


def test_in_a_stack_too_a_run_that_diverges_does_not_stop_the_others(tmp_path):
    runs = varying(lr=[1e-3, 1e30]).runs(tmp_path)
    reasons = sweep_stacked(runs)
    assert list(reasons) == ["lr=1e+30"] and "no longer finite" in reasons["lr=1e+30"] and runs[0].finished


def test_what_changes_the_shape_of_the_work_is_not_stacked(tmp_path):
    with pytest.raises(BadGrid, match="differ in seed, lr, muon_lr, noise, prior alone, and here in layers"):
        sweep_stacked(varying(layers=[1, 2]).runs(tmp_path))
