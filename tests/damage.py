"""Damaged files for property tests: JSON with one value changed, bytes flipped or cut off.

EMULON_DAMAGED=N in the environment asks for N cases a test instead of the few of an ordinary run.
"""

import copy
import json
import os
import random
from pathlib import Path
from typing import Any

ODD = [None, True, False, 0, 1, -1, 2, 7, 10**9, 10**30, 0.5, -0.0, 1e-300, 1e300, float("nan"), float("inf"), "", "x"]
ODD += ["t", "exp(t)", "load", "data", "\ud800", "é\n", [], {}, [[]], {"name": "sgd"}, ["a", 1], [0.0] * 40]


def cases(few: int) -> range:
    return range(int(os.environ.get("EMULON_DAMAGED", few)))


def altered(draw: random.Random, value: Any) -> Any:
    """The same JSON value with one part of it, anywhere, replaced, scaled, removed, doubled or added to."""
    value = copy.deepcopy(value)
    place, key = _anywhere(draw, value)
    old = place[key]
    how = draw.choice(("odd", "odd", "near", "remove", "add", "swap"))
    if how == "near" and isinstance(old, int | float) and not isinstance(old, bool):
        place[key] = draw.choice((old + 1, old * 1.01, old * 0.5, -old, old * 10, float(old)))
    elif how == "remove":
        del place[key]
    elif how == "add" and isinstance(old, list):
        old.append(draw.choice([*old, *ODD]))
    elif how == "add" and isinstance(old, dict):
        old["more"] = draw.choice(ODD)
    elif how == "swap":
        other, name = _anywhere(draw, value)
        place[key] = copy.deepcopy(other[name])
    else:
        place[key] = draw.choice(ODD)
    return value


def damage_bytes(draw: random.Random, path: Path) -> None:
    """Cut the file off, change some of its bytes, or put other bytes in its place."""
    content = bytearray(path.read_bytes())
    how = draw.choice(("cut", "flip", "flip", "other"))
    if how == "cut":
        del content[draw.randrange(len(content)) :]
    elif how == "other":
        content = bytearray(draw.choice((b"", b"{}", b"[]", b"null", b"\x00" * 64, b"[" * 100_000, b"\xff\xfe{}")))
    else:
        for _ in range(draw.choice((1, 1, 8))):
            content[draw.randrange(len(content))] = draw.randrange(256)
    path.write_bytes(content)


def alter_json(draw: random.Random, path: Path) -> None:
    path.write_text(json.dumps(altered(draw, json.loads(path.read_text(encoding="utf-8")))), encoding="utf-8")


def _anywhere(draw: random.Random, value: Any) -> tuple[Any, Any]:
    """A container in the value, and a key of it: each level of nesting as likely."""
    while True:
        key = draw.choice(list(value) if isinstance(value, dict) else range(len(value)))
        inner = value[key]
        if not isinstance(inner, dict | list) or not inner or draw.random() < 0.3:
            return value, key
        value = inner
