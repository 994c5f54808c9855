from pathlib import Path


def require_writable(folder: Path) -> None: ...
def write(job, folder):
    return folder / "index.html"
