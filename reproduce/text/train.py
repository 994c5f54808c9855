"""`python -m reproduce.text.train MODEL --task translation:data=FILE …`: `emulon train`, with the tasks over text."""

import sys
from collections.abc import Sequence

import reproduce.text.tasks  # noqa: F401 (importing them registers their names)
from emulon import cli


def main(words: Sequence[str]) -> int:
    return cli.main(["train", *words])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
