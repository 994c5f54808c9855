"""How long things take: `python -m benchmarks.performance`, `.devices`, `.speedrun`, in the root of the repository."""
