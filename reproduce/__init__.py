"""Every claim of the sources, and our own: numbers, a rule and a figure each. `python -m reproduce` runs them."""

import os

# OpenMP reads this when torch is imported: waiting threads then free their cores sooner.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
