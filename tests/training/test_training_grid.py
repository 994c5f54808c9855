"""A grid finishes every run, whatever happens to its processes, and leaves alone what is finished."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from safetensors.torch import load_file

from emulon.core.errors import EmulonError
from emulon.training import RunFolder, train
from emulon.training.grid import (
    BadGrid,
    NoCluster,
    Processes,
    Run,
    read_words,
    runs_of,
    slurm_executor,
    train_all,
)

BASE = {"features": 3, "points": 7, "noise": 0.5, "width": 16, "heads": 2, "batch": 8, "evaluation_batch": 32}
BASE |= {"lr": 1e-3, "log_every": 1, "device": "cpu", "threads": 1, "layers": 1, "steps": 14, "checkpoint_every": 7}


def varying(**vary):
    return partial(runs_of, {name: value for name, value in BASE.items() if name not in vary}, vary)


def steps_of(run: Run) -> int:
    return max(RunFolder(run.folder).kept_steps(), default=0)


def final_weights(folder: Path) -> dict:
    return load_file(sorted((folder / "checkpoints").iterdir())[-1])


def assert_as_uninterrupted(run: Run, folder: Path) -> None:
    train(run.config, folder)
    here, there = final_weights(run.folder), final_weights(folder)
    assert here.keys() == there.keys() and all(here[name].equal(there[name]) for name in here)
    lines = [[(line["step"], line.get("loss")) for line in RunFolder(each).metrics()] for each in (run.folder, folder)]
    assert lines[0] == lines[1]


def test_a_sweep_started_again_finishes_what_is_unfinished_and_leaves_the_rest_alone(tmp_path, monkeypatch):
    grid = varying(seed=[0, 1, 2])
    runs = grid(tmp_path)
    assert train_all(runs[:1]) == {}
    with monkeypatch.context() as patched:  # stopped in the second run, after its first checkpoint
        patched.setattr(RunFolder, "append", stop_at(10, RunFolder.append))
        with pytest.raises(KeyboardInterrupt):
            train_all(runs)
    assert [run.finished for run in runs] == [True, False, False] and steps_of(runs[1]) == 7
    before = (runs[0].folder / "curve.json").stat().st_mtime_ns
    again = grid(tmp_path)
    assert train_all(again) == {} and all(run.finished for run in again)
    assert (runs[0].folder / "curve.json").stat().st_mtime_ns == before
    assert json.loads((runs[1].folder / "curve.json").read_text())["from_step"] == 7
    assert_as_uninterrupted(runs[1], tmp_path / "whole")


def stop_at(step, real):
    def append(folder, record):
        if record["step"] == step:
            raise KeyboardInterrupt
        real(folder, record)

    return append


def test_processes_train_side_by_side_and_one_that_fails_stops_no_other(tmp_path):
    runs = varying(seed=[0, 1, 2])(tmp_path)
    (runs[0].folder / "metrics.jsonl").mkdir(parents=True)  # nobody expects a folder there
    with Processes(2) as processes:
        reasons = train_all(runs, processes)
    assert list(reasons) == ["seed=0"] and reasons["seed=0"].startswith("IsADirectoryError")
    assert [run.finished for run in runs] == [False, True, True]


def test_stopped_by_hand_a_grid_stops_its_processes_which_write_checkpoints(tmp_path):
    base = BASE | {"steps": 100_000}
    words = [word for name, value in base.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    words = ["train", "standard", *words, "--vary", "seed=0,1,2", "--jobs", "2", "--out", str(tmp_path / "out")]
    training = subprocess.Popen([sys.executable, "-m", "emulon.cli", *words], stderr=subprocess.PIPE, text=True)
    runs = runs_of(base, {"seed": [0, 1, 2]}, tmp_path / "out")[:2]
    while not all(steps_of(run) for run in runs) and training.poll() is None:
        time.sleep(0.1)
    training.send_signal(signal.SIGINT)
    error = training.communicate(timeout=180)[1]
    assert training.returncode == 130 and "Traceback" not in error and error.endswith("emulon train: stopped\n")
    logged = [RunFolder(run.folder).metrics()[-1]["step"] for run in runs]
    assert [steps_of(run) for run in runs] == logged, "each stops after a step, with a checkpoint"


def test_two_jobs_never_train_one_run_at_the_same_time(tmp_path, monkeypatch):
    """As when the jobs of a killed sweep outlive it: the second waits, finds the run finished and does nothing."""
    (run,) = varying(seed=[0])(tmp_path)
    # The file by which a folder is tried is the process's own, which two threads would share.
    run.folder.mkdir()
    monkeypatch.setattr("emulon.training.grid.make_folder", lambda folder: folder)
    with ThreadPoolExecutor(2) as threads:
        assert [job.result() for job in [threads.submit(run) for _ in range(2)]] == ["", ""]
    assert [line["step"] for line in RunFolder(run.folder).metrics() if line["kind"] == "train"] == list(range(1, 15))


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
    runs = varying(seed=[0])(tmp_path / "sweep")
    settings = {"partition": "small", "gpus_per_node": 1, "timeout_min": 30}
    assert train_all(runs, slurm_executor(tmp_path / "sweep", settings)) == {} and runs[0].finished
    (script,) = (tmp_path / "sweep" / "jobs").glob("*/7_submission.sh")
    for setting in ("--partition=small", "--gpus-per-node=1", "--time=30", "--signal=USR2@", "--job-name=emulon"):
        assert f"#SBATCH {setting}" in script.read_text()
    with pytest.raises(NoCluster, match="refuses these settings of Slurm: Unknown argument 'partitoin'"):
        slurm_executor(tmp_path / "sweep", {"partitoin": "small"})


def test_without_a_cluster_or_submitit_one_line_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoCluster, match="sbatch is not found; leave --slurm out"):
        slurm_executor(tmp_path, {})
    (tmp_path / "sbatch").write_text("#!/bin/sh\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(NoCluster, match=r"pip install 'emulon\[cluster\]', or leave --slurm out"):
        slurm_executor(tmp_path, {})


def test_a_grid_is_every_combination_with_the_recipes_own_values(tmp_path):
    vary = {"model": ["standard", "algoformer"], "seed": [0, 1]}
    runs = runs_of({"recipe": "fast", "preset": "small"}, vary, tmp_path)
    assert [run.name for run in runs][:3] == [
        "model=standard,seed=0",
        "model=standard,seed=1",
        "model=algoformer,seed=0",
    ]
    assert [run.config.optimiser.muon_lr for run in runs] == [0.005] * 4 and runs[0].config.optimiser.lr == 5e-4
    assert all((run.config.task.features, run.config.optimiser.optimiser) == (5, "muon") for run in runs)
    assert runs[1].values == {"model": "standard", "seed": 1} and runs[1].config.seed == 1
    assert not list(tmp_path.iterdir())


def test_words_say_what_varies():
    assert read_words(["seed=0,1", "lr=1e-3,1"]) == {"seed": [0, 1], "lr": [1e-3, 1.0]}
    assert read_words(["model=standard,looped"]) == {"model": ["standard", "looped"]}
    assert read_words(["zero-output=true,none"]) == {"zero_output": [True, None]}
    for word, reason in (("sede=1", "did you mean seed"), ("seed=one", "seed: 'one' is not a whole number")):
        with pytest.raises(EmulonError, match=reason):
            read_words([word])


def test_a_folder_that_holds_another_run_is_refused(tmp_path):
    train_all(varying(seed=[0])(tmp_path))
    with pytest.raises(BadGrid, match="holds a run whose steps is 14, and here it is 15; choose another --out"):
        runs_of(BASE | {"steps": 15}, {"seed": [0]}, tmp_path)
