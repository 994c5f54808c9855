"""Fitted estimators of scikit-learn in skops files: types by name and plain numbers, never a pickle.

skops makes objects of types that it trusts (numpy's, scipy's, scikit-learn's own) and refuses all others. A multilayer
perceptron also keeps the optimiser that it was fitted with, which skops does not know: the two are named here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from emulon.core.errors import EmulonError

OPTIMISERS = tuple(
    f"sklearn.neural_network._stochastic_optimizers.{name}" for name in ("AdamOptimizer", "SGDOptimizer")
)


class BadSkops(EmulonError):
    """A skops file that cannot be read, that holds types which are not trusted, or that needs skops to be installed.

    Cure: `skops.io.dump(fitted, "FILE.skops")` writes one; what is of a class of your own is given as `file.py:name`.
    """


def is_skops(path: Path) -> bool:
    return path.is_file() and path.suffix == ".skops"


def load_skops(path: Path) -> Any:
    """The estimator, made of trusted types alone."""
    try:
        from skops import io
    except ImportError as missing:
        raise BadSkops(f"{path} needs skops; install it with: pip install 'emulon[skops]'") from missing
    try:
        foreign = sorted(set(io.get_untrusted_types(file=path)) - set(OPTIMISERS))
        loaded = None if foreign else io.load(path, trusted=list(OPTIMISERS))
    except Exception as error:  # whatever somebody's file makes of skops
        why = " ".join(f"{type(error).__name__}: {error}".split())[:100]
        raise BadSkops(f"{path} cannot be read as a skops file ({why}); write it with skops.io.dump") from None
    if foreign:
        raise BadSkops(f"{path} holds {', '.join(foreign[:3])}, which is not trusted; give it as file.py:name instead")
    return loaded
