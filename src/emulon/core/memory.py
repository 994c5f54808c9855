"""Free memory, the refusal of work that does not fit in it, and block sizes that stay in cache."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from emulon.core.errors import OutOfMemory

if TYPE_CHECKING:
    import torch

# Where Linux keeps what a container may use, and uses: version 2 of control groups, and version 1.
LIMITS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current", "file"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache"),
)


def free_memory() -> int | None:
    """Free bytes: the least of what the machine, its container and the process's own limit allow."""
    found = [size for size in (_of_machine(), *(_of_container(*files) for files in LIMITS), _of_process()) if size]
    return min(found, default=None)


# How much more is done at a time on a GPU: no cache would hold it, and a launch costs as much as a megabyte does.
ON_GPU = 1 << 8


def at_a_time(numbers: int, device: torch.device) -> int:
    """How many numbers to do together, where so many stay in a processor's cache."""
    return numbers * (ON_GPU if device.type == "cuda" else 1)


@contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """For work on blocks that stay in one core's cache: it gains nothing from a second thread.

    Where another process holds a core, two threads that wait for each other after every operation take a hundred times
    as long as one.
    """
    import torch

    before = torch.get_num_threads()
    if device.type != "cpu" or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def require_memory(needed: int, what: str, cure: str, device: torch.device | None = None) -> None:
    """Refuse work that needs more memory than is free on the device; unknown sizes are not refused."""
    free = free_memory() if device is None or device.type != "cuda" else _of_gpu(device)
    if free is not None and needed > free:
        raise OutOfMemory(f"{what} needs about {_shown(needed)} of memory and {_shown(free)} are free; {cure}")


def _shown(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.2g} MB"


def _of_gpu(device: torch.device) -> int:
    """Of the GPU, and of what torch holds there and does not use."""
    import torch

    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + unused


def _of_machine() -> int | None:
    path = Path("/proc/meminfo")
    if path.exists():
        lines = dict(line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
        if "MemAvailable" in lines:
            return int(lines["MemAvailable"].split()[0]) * 1024
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _of_container(folder: str, limit: str, used: str, cached: str) -> int | None:
    try:
        most, now = (Path(folder, name).read_text().strip() for name in (limit, used))
        facts = dict(line.split() for line in Path(folder, "memory.stat").read_text().splitlines())
        # Files that are kept in memory count as used, and are given up when asked for.
        return max(int(most) - int(now) + int(facts.get(cached, 0)), 1)
    except (OSError, ValueError):  # no such file, or "max": no limit
        return None


def _of_process() -> int | None:
    """`ulimit -v`, less what the process has of it."""
    try:
        import resource

        most = resource.getrlimit(resource.RLIMIT_AS)[0]
        own = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (ImportError, OSError, ValueError):
        return None
    return max(most - own, 1) if most != resource.RLIM_INFINITY else None
