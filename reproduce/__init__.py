"""Every claim of the sources, and our own: numbers, a rule and a figure each. `python -m reproduce` runs them."""
