"""Every block of code in README, CONTRIBUTING and docs/ does what the page says, pasted into a fresh process."""

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


class Pages:
    """Runs pages in fresh processes; see fresh.py."""

    process: subprocess.Popen | None = None

    def run(self, page, folder):
        if self.process is None:
            command = [sys.executable, "-W", "error", str(Path(__file__).parent / "fresh.py")]
            streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "encoding": "utf-8"}
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
            self.process = subprocess.Popen(command, **streams, env=environment)
        self.process.stdin.write(f"{page}\t{folder}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not hasattr(os, "fork"):
            self.close()
        return json.loads(answer) if answer else f"the process ended with {self.process.wait()}"

    def close(self):
        if self.process is not None:
            self.process.communicate()
            self.process = None


@pytest.fixture(scope="module")
def pages():
    pages = Pages()
    yield pages
    pages.close()


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_of_a_page_runs(page, pages, tmp_path):
    wrong = pages.run(page, tmp_path)
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
def test_a_page_has_what_its_text_says_and_no_more(text, wrong, pages, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(text + "\n")
    outcome = pages.run(page, tmp_path)
    assert wrong in outcome if wrong else not outcome


def test_a_wrong_page_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "none.md"

    def fails(text):
        monkeypatch.setattr(Path, "read_text", lambda *_, **__: text)
        try:
            run(page)
        except (AssertionError, SyntaxError, NameError):
            return True
        finally:
            monkeypatch.undo()
            monkeypatch.chdir(tmp_path)
        return False

    left_out = "<!-- not run: it takes too long here -->\n"
    for text in (
        "```python\nprint(1.0001)\n```\n\n```output\n1.0\n```\n",
        "```python\nprint('+0.67 +002 -052')\n```\n\n```output\n+0.67 +002 -055\n```\n",
        "<!-- needs: not_installed_here -->\n```python\nnobody\n```\n",
    ):
        assert not fails(text), text
    for text in (
        "```python\nprint('+0.67 +002 -052')\n```\n\n```output\n+0.67 +002 -152\n```\n",
        "```python\nprint(1.01)\n```\n\n```output\n1.0\n```\n",
        "```python\nnobody\n```\n",
        "```bash\nmake test\n```\n",
        "<!-- needs: torch -->\n```python\nnobody\n```\n",
        f"{left_out}```python\nif\n```\n",
        f"{left_out}```bash\nmake nothing\n```\n",
    ):
        assert fails(text), text


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
