"""Experiments: the library on real data, each algorithm beside its exact self; and sweeps."""

# Here, so that a command can refuse another name before it imports anything else.
DATASETS = ("diabetes", "breast_cancer", "wine", "ames")
