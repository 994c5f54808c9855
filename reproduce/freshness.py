"""Whether a result was measured by the code as it is now.

A result keeps a digest of the code that measured it: of a claim's `run` and of everything among the claims' modules
that it refers to, without docstrings, comments and white space. Rules, figures and words are not part of it, and
neither is the library, which has tests of its own. Files may move: only names and text count.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from reproduce.claim import Claim

PACKAGE = "reproduce"
# What every claim goes through without its numbers depending on it.
APART = {f"{PACKAGE}.{name}" for name in ("claim", "interval", "parts", "record", "registry")}
# Words of a refusal, without white space: as they are now, and as they were when results were measured.
REWORDED = {
    'python-mreproduce.text.corpus{name}--vocabulary{vocabulary}"f"--out': (
        "emuloncorpus{name}--vocabulary{vocabulary}--out"
    ),
    '"seeds":list(setting.parts(measures).values()),}': '"seeds":list(setting.parts(measures).values())}',
    "config.changed(": "dataclasses.replace(config,",
    "blocks.changed(": "dataclasses.replace(blocks,",
    "TrainConfig.of(": "TrainConfig(",
}
# Results were measured when the options of a configuration had no groups.
GROUPED = re.compile(r"\bconfig\.(task|model|optimiser|schedule|evaluation|device)\.")


def code_of(claim: Claim, source: Callable[[str], str] | None = None) -> str:
    """The digest; `source` gives the text of a module by its name, by default the one that is imported."""
    run = getattr(claim.run, "func", claim.run)
    return _digest(run.__module__, run.__name__, source or _installed)


@cache
def _installed(module: str) -> str:
    found = importlib.util.find_spec(module)
    return Path(found.origin).read_text() if found and found.origin else ""


@cache
def _digest(module: str, name: str, source: Callable[[str], str]) -> str:
    texts: dict[tuple[str, str], str] = {}
    asked = [(module, name)]
    while asked:
        place = asked.pop()
        if place not in texts:
            texts[place], further = _looked_up(*place, source)
            asked += further
    return hashlib.sha256("\0".join(sorted(filter(None, texts.values()))).encode()).hexdigest()[:16]


def _looked_up(module: str, name: str, source: Callable[[str], str]) -> tuple[str, list[tuple[str, str]]]:
    """The text of a name's definition in a module, and what to look up after it."""
    text = source(module)
    defined, imported = _names(text)
    if name in imported:
        return "", [imported[name]]
    if name not in defined:
        return "", []
    node = defined[name]
    further = []
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name):
            further.append((module, inner.id))
        elif isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name) and inner.value.id in imported:
            package, part = imported[inner.value.id]
            further.append((f"{package}.{part}", inner.attr))
    return _plain(node, text), further


@cache
def _names(text: str) -> tuple[dict[str, ast.stmt], dict[str, tuple[str, str]]]:
    """What a module defines, and what it imports from the claims' modules."""
    defined: dict[str, ast.stmt] = {}
    imported: dict[str, tuple[str, str]] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                defined |= {inner.id: node for inner in ast.walk(target) if isinstance(inner, ast.Name)}
        elif isinstance(node, ast.ImportFrom) and _measures(node.module or ""):
            imported |= {each.asname or each.name: (node.module or "", each.name) for each in node.names}
    return defined, imported


def _measures(module: str) -> bool:
    """Whether it is one of the claims' own: the text tasks have tests of their own, as the library has."""
    return module.startswith(PACKAGE) and module not in APART and not module.startswith(f"{PACKAGE}.text")


def _plain(node: ast.stmt, text: str) -> str:
    first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
    left_out = {line for inner in ast.walk(node) for line in _docstring(inner)}
    lines = text.splitlines()[first - 1 : node.end_lineno]
    kept = [line for number, line in enumerate(lines, first) if number not in left_out]
    plain = "".join("".join(line.split()) for line in kept if not line.lstrip().startswith("#"))
    for now, before in REWORDED.items():
        plain = plain.replace(now, before)
    return GROUPED.sub("config.", plain)


def _docstring(node: ast.AST) -> Iterator[int]:
    """The lines of a function's or class's docstring."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
        first = node.body[0]
        yield from range(first.lineno, (first.end_lineno or first.lineno) + 1)
