"""Experiments: the library on real data, each algorithm beside its exact self, and how long things take."""
