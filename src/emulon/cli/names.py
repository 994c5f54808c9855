"""Names without imports: which exist is read from the sources, where things register as they are defined.

The registries themselves are full only after torch is imported, and a misspelt name should not wait for that.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import emulon
from emulon.cli.options import BadUsage
from emulon.core.errors import unknown
from emulon.core.registry import snake_case

SOURCE = Path(emulon.__file__).parent


def require_known(kind: str, name: str, package: str) -> None:
    """Refuse a name that nothing in this package of emulon registers as."""
    if name not in registered(package):
        raise BadUsage(unknown(kind, name, registered(package)))


@cache
def registered(package: str) -> frozenset[str]:
    """`class Linear(Task, name="linear")`, `@ALGORITHMS.register class HuberRegression`, `@method(…)`."""
    sources = [path.read_text(encoding="utf-8") for path in (SOURCE / package).rglob("*.py")]
    return frozenset(name for source in sources for node in ast.parse(source).body if (name := _name(node)))


def _name(node: ast.stmt) -> str:
    if isinstance(node, ast.FunctionDef):
        marks = [mark for mark in node.decorator_list if isinstance(mark, ast.Call) and mark.args]
        names = [mark.args[0] for mark in marks if ast.unparse(mark.func) == "method"]
        return next((str(name.value) for name in names if isinstance(name, ast.Constant)), "")
    if isinstance(node, ast.ClassDef):
        if any(ast.unparse(mark).endswith(".register") for mark in node.decorator_list):
            return snake_case(node.name)
        return _keyword(node.keywords)
    return ""


def _keyword(keywords: list[ast.keyword]) -> str:
    values = [each.value for each in keywords if each.arg == "name"]
    return next((str(value.value) for value in values if isinstance(value, ast.Constant)), "")


def fields_of(module: str, name: str) -> list[str]:
    """The fields of a dataclass, from its source."""
    path = SOURCE.joinpath(*module.split(".")).with_suffix(".py")
    body = ast.parse(path.read_text(encoding="utf-8")).body
    [declared] = [node for node in body if isinstance(node, ast.ClassDef) and node.name == name]
    return [
        node.target.id
        for node in declared.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]
