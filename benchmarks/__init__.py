"""How long things take: `python -m benchmarks.bench`, `.devices`, `.speedrun`, in the root of the repository."""
