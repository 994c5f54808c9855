"""Which machine, which code, when: beside every number that is kept."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from pathlib import Path

import torch


def provenance(device: torch.device) -> dict[str, str]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "machine": f"{name}, {os.cpu_count()} CPU cores",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": _commit(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _commit() -> str:
    """COMMIT from the environment where the checkout has no .git (a copy on another machine).

    An installed copy may lie inside somebody else's checkout, whose commit says nothing about this code.
    """
    if "COMMIT" in os.environ:
        return os.environ["COMMIT"]
    if _git("ls-files", Path(__file__).name):
        changed = " with changes" if _git("status", "--porcelain", "--", "..") else ""
        return _git("rev-parse", "HEAD") + changed
    return "unknown"


def _git(*words: str) -> str:
    here = Path(__file__).parent
    try:
        return subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:  # no git on this machine
        return ""
