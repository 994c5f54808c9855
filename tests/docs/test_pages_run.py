"""Every block of code in README, CONTRIBUTING and docs/ does what the page says, pasted into a fresh process."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from blocks import ROOT, Block, blocks, parsed, run, same
from notebooks import as_notebook, as_page, scripts

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")), *scripts()]


@pytest.fixture(scope="module")
def wrong_with():
    """What goes wrong with a page in a fresh process and a folder; see fresh.py."""
    command = [sys.executable, "-W", "error", str(Path(__file__).parent / "fresh.py")]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "encoding": "utf-8"}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
    with subprocess.Popen(command, **streams, env=environment) as process:

        def run(page, folder):
            process.stdin.write(f"{page}\t{folder}\n")
            process.stdin.flush()
            answer = process.stdout.readline()
            return json.loads(answer) if answer else f"the process ended with {process.wait()}"

        yield run


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_of_a_page_runs(page, wrong_with, tmp_path):
    wrong = wrong_with(page, tmp_path)
    assert not wrong, wrong


@pytest.mark.parametrize("script", scripts(), ids=lambda script: script.stem)
def test_a_notebook_is_its_script(script):
    committed = script.with_suffix(".ipynb").read_text(encoding="utf-8")
    assert committed == as_notebook(script), "stale: run python docs/making/notebooks.py"
    book = json.loads(committed)
    first_code = next(cell for cell in book["cells"] if cell["cell_type"] == "code")
    assert first_code["source"][0].startswith("%pip install") and "colab.research.google.com" in str(book["cells"][1])
    assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])
    page = as_page(script)
    assert page.startswith("# ") and "images/colab.svg" in page and page.count("```") % 2 == 0


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("```python\nimport torch\n```", ""),
        ("```python\nimport transformers\n```", "No module named 'transformers'"),
        ("With `pip install 'emulon[hf]'`:\n```python\nimport transformers\n```", ""),
        ("<!-- [hf] -->\n```python\nimport transformers\n```", "No module named 'transformers'"),
        ("```python\nimport warnings\nwarnings.warn('old')\n```", "UserWarning: old"),
        ("<!-- run first\nx = 1\n-->\n```python\nx\n```", "name 'x' is not defined"),
    ],
)
def test_a_page_has_what_its_text_says_and_no_more(text, wrong, wrong_with, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(text + "\n")
    outcome = wrong_with(page, tmp_path)
    assert wrong in outcome if wrong else not outcome


LEFT_OUT = "<!-- not run: it takes too long here -->\n"


@pytest.mark.parametrize(
    ("text", "fails"),
    [
        ("```python\nprint(1.0001)\n```\n\n```output\n1.0\n```\n", False),
        ("```python\nprint('+0.67 +002 -052')\n```\n\n```output\n+0.67 +002 -055\n```\n", False),
        ("<!-- needs: not_installed_here -->\n```python\nnobody\n```\n", False),
        ("```python\nprint('+0.67 +002 -052')\n```\n\n```output\n+0.67 +002 -152\n```\n", True),
        ("```python\nprint(1.01)\n```\n\n```output\n1.0\n```\n", True),
        ("```python\nnobody\n```\n", True),
        ("```bash\nmake test\n```\n", True),
        ("<!-- needs: torch -->\n```python\nnobody\n```\n", True),
        (f"{LEFT_OUT}```python\nif\n```\n", True),
        (f"{LEFT_OUT}```bash\nmake nothing\n```\n", True),
    ],
)
def test_a_wrong_page_is_found(text, fails, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page.md").write_text(text)
    with pytest.raises((AssertionError, SyntaxError, NameError)) if fails else contextlib.nullcontext():
        run(tmp_path / "page.md")


def test_options_of_commands_that_are_not_run_are_checked():
    from emulon.cli.options import BadUsage

    parsed(Block("bash", "emulon train standard --steps 5 && make test\npip install 'emulon[hf]'\n", 1), "here")
    with pytest.raises(BadUsage, match="--stpes"):
        parsed(Block("bash", "emulon train standard --stpes 5\n", 1), "here")
    with pytest.raises(AssertionError, match="there is no extra"):
        parsed(Block("bash", "pip install 'emulon[fh]'\n", 1), "here")


def test_numbers_are_compared_as_the_page_shows_them():
    assert same("error 3e-15, 12 keys", "error 8.1e-15, 12 keys") and same("R² 0.4526", "R² 0.45262")
    assert not same("error 3e-15", "error 8e-13") and not same("12 keys", "13 keys") and not same("a 1", "b 1")
