"""Notebooks in jupytext's percent format: as pages of the site, and as .ipynb files for Jupyter and Colab.

A tutorial is a Python file. `# %% [markdown]` begins text, `# %%` code; a line `# %pip install …` is a magic of
notebooks. A text cell that is a fenced `output` block is what the cell before it prints. `python
docs/making/notebooks.py` writes the .ipynb files beside the scripts; a test says when they are stale.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

TUTORIALS = Path(__file__).parents[1] / "tutorials"
COLAB = "https://colab.research.google.com/github/emulon/emulon/blob/main/docs/tutorials/{name}.ipynb"
BADGE = "https://colab.research.google.com/assets/colab-badge.svg"
MAGIC = re.compile(r"^# (%pip .*)$", re.MULTILINE)
OUTPUT = re.compile(r"```output\n(.*)```", re.DOTALL)


@dataclass(frozen=True)
class Cell:
    """One cell; `printed` is what a code cell prints."""

    kind: str
    text: str
    printed: str = ""


def scripts() -> list[Path]:
    return sorted(TUTORIALS.glob("*.py"))


def cells(script: str) -> list[Cell]:
    found: list[Cell] = []
    for part in re.split(r"^# %%", script, flags=re.MULTILINE)[1:]:
        head, _, body = part.partition("\n")
        text = body.strip("\n")
        if head.strip() != "[markdown]":
            found.append(Cell("code", MAGIC.sub(r"\1", text)))
            continue
        text = re.sub(r"^# ?", "", text, flags=re.MULTILINE)
        printed = OUTPUT.fullmatch(text)
        if printed:
            found[-1] = Cell("code", found[-1].text, printed[1])
        else:
            found.append(Cell("markdown", text))
    return found


def as_page(script: Path) -> str:
    """The page of the site, with a badge below its title."""
    parts = []
    for cell in cells(script.read_text(encoding="utf-8")):
        if cell.kind == "markdown":
            parts.append(cell.text)
        elif cell.text.startswith("%pip"):
            parts.append(f"<!-- not run: it installs -->\n```bash\n{cell.text.removeprefix('%')}\n```")
        else:
            parts.append(f"```python\n{cell.text}\n```")
        if cell.printed:
            parts.append(f"```output\n{cell.printed}```")
    badge = f"[![Open in Colab](../images/colab.svg)]({COLAB.format(name=script.stem)})"
    parts.insert(1, f"{badge} or download the [notebook]({script.stem}.ipynb).")
    return "\n\n".join(parts) + "\n"


def as_notebook(script: Path) -> str:
    """The .ipynb file, with the outputs that the script records."""
    made = [_cell(f"cell-{i}", cell) for i, cell in enumerate(cells(script.read_text(encoding="utf-8")))]
    badge = f"[![Open in Colab]({BADGE})]({COLAB.format(name=script.stem)})"
    made.insert(1, _cell("badge", Cell("markdown", badge)))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    book = {"cells": made, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(book, indent=1, ensure_ascii=False) + "\n"


def _cell(name: str, cell: Cell) -> dict[str, object]:
    made: dict[str, object] = {"id": name, "cell_type": cell.kind, "metadata": {}, "source": _lines(cell.text)}
    if cell.kind == "code":
        stream = {"name": "stdout", "output_type": "stream", "text": _lines(cell.printed)}
        made |= {"execution_count": None, "outputs": [stream] if cell.printed else []}
    return made


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def main() -> None:
    for script in scripts():
        script.with_suffix(".ipynb").write_text(as_notebook(script), encoding="utf-8")


if __name__ == "__main__":
    main()
