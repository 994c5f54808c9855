"""emulon: learning algorithms compiled into frozen softmax transformers, with a proved error."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

from emulon.core.names import RenamedModules

if TYPE_CHECKING:
    from emulon import planted
    from emulon.certify import Certificate, Domain
    from emulon.identification import identify
    from emulon.identification.loading import load_predictor
    from emulon.interpreter import Interpreter, Program, compile
    from emulon.networks import compile_iteration, compile_network
    from emulon.softmax import approximate

    __version__: str

__all__ = [
    "Certificate",
    "Domain",
    "Interpreter",
    "Program",
    "approximate",
    "compile",
    "compile_iteration",
    "compile_network",
    "identify",
    "load_predictor",
    "planted",
]
_ROOM = {
    **{"Certificate": "certify", "Domain": "certify", "load_predictor": "identification.loading"},
    **dict.fromkeys(("compile_iteration", "compile_network"), "networks"),
    **{"approximate": "softmax", "identify": "identification"},
}


def __getattr__(name: str) -> object:
    """The public names, imported when first asked for: `emulon --help` should not wait for torch."""
    if name == "__version__":
        return version("emulon")
    if name not in __all__:
        raise AttributeError(f"module 'emulon' has no attribute {name!r}")
    if name == "planted":
        return import_module("emulon.planted")
    return getattr(import_module(f"emulon.{_ROOM.get(name, 'interpreter')}"), name)


sys.meta_path.append(RenamedModules())
