"""What an engine is: from a checkpoint's folder to a function from prompts to logits, and what it claims.

A package is imported when its engine is opened.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulon.core.names import Registry

Prompts = Sequence[Sequence[int]]
Answers = NDArray[Any]
Opened = Callable[[Prompts], Answers]
One = Callable[[Sequence[int]], Answers]
# Positions of the first token; the longest prompt.
OFFSETS, LONGEST = (4096, 32768, 1 << 20), 256


@dataclass(frozen=True)
class Engine:
    """One engine in one configuration.

    Attributes:
        name: As the table writes it.
        package: What has to be installed.
        arithmetic: The number format that it claims to compute in.
        open: From a checkpoint's folder to a function from prompts to logits.
        offset: The position of the first token.
        family: Of the canaries that it is given.
        plain: Whether it stands for its package: one forward pass, of each number format.
        device: Where it runs: cpu or cuda.
        untested: Never run, and not checked against the package's documentation.

    Example:
        >>> ENGINES["transformers float32 sdpa"].open(folder)([[1, 5, 3]])
    """

    name: str
    package: str
    arithmetic: str
    open: Callable[[Path], Opened]
    offset: int = 0
    family: str = "llama"
    plain: bool = False
    device: str = "cpu"
    untested: bool = False

    @property
    def writes(self) -> bool:
        """Whether it can be given the text model, which needs float32, position 0 and prompts of any length."""
        return self.arithmetic == "float32" and self.family == "llama" and not self.offset

    @property
    def installed(self) -> bool:
        if importlib.util.find_spec(self.package) is None:
            return False
        if self.device == "cpu":
            return True
        import torch

        return torch.cuda.is_available()


ENGINES: Registry[Engine] = Registry("engine")


def add(name: str, package: str, arithmetic: str, open_: Callable[[Path], Opened], **more: Any) -> None:
    """Register an engine; `more` are other fields of `Engine`."""
    ENGINES.register(Engine(name, package, arithmetic, open_, **more), name)


def each(answer: One) -> Opened:
    """A function of prompts from one of a prompt, which gives its logits, the last token's last."""
    return lambda prompts: np.stack([np.asarray(answer(list(prompt)), dtype=np.float64) for prompt in prompts])
