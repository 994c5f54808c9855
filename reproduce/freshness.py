"""Whether a result was measured by the code as it is now.

A result keeps a digest of the code that measured it: of the syntax of a claim's `run` and of everything in the claims'
modules that it refers to, without docstrings and refusals (raise). Formatting, comments, rules, figures and words are
not part of it, and neither is the library, which has tests of its own. Code may move between files.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path

from reproduce.claim import Claim

PACKAGE = "reproduce"
# Not followed: the framework, on which no number depends, and the text tasks, which have tests of their own.
FRAMEWORK = tuple(f"{PACKAGE}.{name}" for name in ("claim", "interval", "record", "text"))
Sources = Callable[[str], str]


def code_of(claim: Claim, source: Sources | None = None) -> str:
    """The digest; `source` returns the text of a module by its name, by default the one that is imported."""
    run = getattr(claim.run, "func", claim.run)
    return _digest(run.__module__, run.__name__, source or _installed)


@cache
def _installed(module: str) -> str:
    found = importlib.util.find_spec(module)
    return Path(found.origin).read_text() if found and found.origin else ""


@cache
def _digest(module: str, name: str, source: Sources) -> str:
    texts: dict[tuple[str, str], str] = {}
    asked = [(module, name)]
    while asked:
        place = asked.pop()
        if place not in texts:
            texts[place], further = _definition(*place, source)
            asked += further
    return hashlib.sha256("\0".join(sorted(filter(None, texts.values()))).encode()).hexdigest()[:16]


def _definition(module: str, name: str, source: Sources) -> tuple[str, list[tuple[str, str]]]:
    """The text that defines a name in a module, and the names to look up after it."""
    text = source(module)
    defined, imported = _names(text)
    if name in imported:
        return "", [imported[name]]
    if name not in defined:
        return "", []
    further = []
    for inner in ast.walk(defined[name]):
        if isinstance(inner, ast.Name):
            further.append((module, inner.id))
        elif isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name) and inner.value.id in imported:
            package, part = imported[inner.value.id]
            further.append((f"{package}.{part}", inner.attr))
    # Versions of Python print nested quotes differently.
    return ast.unparse(_Measuring().visit(copy.deepcopy(defined[name]))).replace('"', "'"), further


@cache
def _names(text: str) -> tuple[dict[str, ast.stmt], dict[str, tuple[str, str]]]:
    """The definitions of a module, and its imports from the claims' modules."""
    defined: dict[str, ast.stmt] = {}
    imported: dict[str, tuple[str, str]] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                defined |= {inner.id: node for inner in ast.walk(target) if isinstance(inner, ast.Name)}
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if module.startswith(PACKAGE) and not module.startswith(FRAMEWORK):
                imported |= {each.asname or each.name: (module, each.name) for each in node.names}
    return defined, imported


class _Measuring(ast.NodeTransformer):
    """Leaves out docstrings and refusals."""

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        return ast.Pass() if isinstance(node.value, ast.Constant) else node

    def visit_Raise(self, node: ast.Raise) -> ast.stmt:
        return ast.Pass()
