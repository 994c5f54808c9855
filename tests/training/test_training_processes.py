"""Two processes train as one with the doubled batch."""

import socket

from tiny_runs import FAST, final_state, in_a_process

from emulon.training import RunFolder, train


def test_two_gloo_processes_give_the_loss_curve_of_one_with_twice_the_batch(tmp_path):
    config = FAST  # Muon for the matrices, Adam for the rest
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    code = f"train(FAST, {str(tmp_path / 'two')!r})"
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    both = [in_a_process(code, RANK=str(rank), LOCAL_RANK=str(rank), **shared) for rank in range(2)]
    train(config.changed(batch=16), tmp_path / "one")
    for process in both:
        _, error = process.communicate(timeout=120)
        assert process.returncode == 0, error
    one, two = (
        [line["loss"] for line in RunFolder(tmp_path / name).metrics() if line["kind"] == "train"]
        for name in ("one", "two")
    )
    assert len(one) == len(two) == FAST.schedule.steps
    assert max(abs(a - b) for a, b in zip(one, two, strict=True)) < 1e-6
    a, b = final_state(tmp_path / "one"), final_state(tmp_path / "two")
    assert max((a[name] - b[name]).abs().max().item() for name in a if name.startswith("weights")) < 1e-4
