"""Tables of real data: read, encoded as matrices, and kept beside a fitted model."""

# Here, so that a command can refuse another name before it imports anything else.
DATASETS = ("diabetes", "breast_cancer", "wine", "ames")
