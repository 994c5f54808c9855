"""What cannot fit is refused with figures before it is tried; what stays in cache takes one thread."""

import pytest
import torch

from emulon.algorithms import Ridge
from emulon.certify import Domain
from emulon.core import arrays as memory
from emulon.core.arrays import free_memory, require_memory
from emulon.core.errors import OutOfMemory
from emulon.interpreter import Interpreter, compile
from emulon.interpreter.audit import audited


def test_what_does_not_fit_is_refused_with_both_figures(monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda: 1_500_000_000)
    require_memory(1_400_000_000, "this", "no cure")
    with pytest.raises(OutOfMemory, match=r"this needs about 1\.6 GB of memory and 1\.5 GB are free; take less"):
        require_memory(1_600_000_000, "this", "take less")


def test_free_memory_is_the_least_of_all_limits(monkeypatch, tmp_path):
    for name, text in (("memory.max", "5000000"), ("memory.current", "4000000"), ("memory.stat", "anon 1\nfile 7000")):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(memory, "LIMITS", ((str(tmp_path), "memory.max", "memory.current", "file"),))
    assert free_memory() == 1_007_000
    (tmp_path / "memory.max").write_text("max")
    assert free_memory() > 1_007_000
    monkeypatch.setattr(memory, "_of_machine", lambda: None)
    assert free_memory() is None
    require_memory(10**18, "nothing is known, so that this", "no cure")


def test_a_run_says_what_it_would_need_before_it_begins(monkeypatch):
    x = torch.randn(12, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    program = compile(Ridge(steps=2), Domain.of(x, x.sum(dim=-1)))
    interpreter = Interpreter.fitting(program)
    monkeypatch.setattr(memory, "free_memory", lambda: 50_000)
    with pytest.raises(OutOfMemory, match=r"Ridge on 12 × 3 \(mode fast\) needs about 0\.1 GB .* take fewer rows"):
        interpreter.run(program, x, x.sum(dim=-1))
    with pytest.raises(OutOfMemory, match=r"\(mode reference\) .* take mode fast"):
        interpreter.run(program, x, x.sum(dim=-1), mode="reference")


def test_fast_runs_and_audits_work_in_one_thread_and_leave_the_others_to_the_caller(monkeypatch):
    x = torch.randn(30, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    program = compile(Ridge(steps=2), data=(x, x.sum(dim=-1)))
    before, seen = torch.get_num_threads(), set()
    monkeypatch.setattr(
        "emulon.interpreter.program.audited", lambda *data: seen.add(torch.get_num_threads()) or audited(*data)
    )
    torch.set_num_threads(2)
    try:
        run = Interpreter.fitting(program).run(
            program, x, x.sum(dim=-1), report_progress=lambda *_: seen.add(torch.get_num_threads())
        )
        assert (seen, torch.get_num_threads()) == ({1}, 2)
        seen.clear()
        assert run.audit.proved and (seen, torch.get_num_threads()) == ({1}, 2)
    finally:
        torch.set_num_threads(before)
