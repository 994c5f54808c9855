"""Examples of docstrings as blocks of code: Markdown would take `>>>` for a quotation."""

from __future__ import annotations

import re
from typing import Any

import griffe

# griffe knows the section by its plural.
SECTION = re.compile(r"^( *)Example:$", re.MULTILINE)
EXAMPLE = re.compile(r"(?:^>>> .*\n?)(?:^(?!\s*$).*\n?)*", re.MULTILINE)


class Doctests(griffe.Extension):
    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(docstring: str) -> str:
    docstring = SECTION.sub(r"\1Examples:", docstring)
    return EXAMPLE.sub(lambda match: f"```pycon\n{match[0].rstrip()}\n```\n", docstring)
