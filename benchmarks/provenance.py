"""Which machine, which code, when: beside every number a benchmark writes."""

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
    """COMMIT from the environment where the checkout has no .git (a copy on another machine)."""
    if "COMMIT" in os.environ:
        return os.environ["COMMIT"]
    here = Path(__file__).parent
    found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"
