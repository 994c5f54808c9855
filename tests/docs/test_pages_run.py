"""Every block of code in README, CONTRIBUTING and docs/ does what the page says."""

import sys
from pathlib import Path

import jaxtyping
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from blocks import ROOT, Block, blocks, parsed, run, same

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # As readers run them: checks of types at run time are for tests alone.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    run(page)


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

    assert not fails("```python\nprint(1.0001)\n```\n\n```output\n1.0\n```\n")
    assert fails("```python\nprint(1.01)\n```\n\n```output\n1.0\n```\n")
    assert fails("```python\nnobody\n```\n")
    assert fails("```bash\nemulon approximate\n```\n")
    assert fails("```bash\nmake test\n```\n")
    assert fails("<!-- needs: torch -->\n```python\nnobody\n```\n")
    assert not fails("<!-- needs: not_installed_here -->\n```python\nnobody\n```\n")
    assert fails("<!-- not run: it takes too long here -->\n```python\nif\n```\n")
    assert fails("<!-- not run: it takes too long here -->\n```bash\nmake nothing\n```\n")


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
