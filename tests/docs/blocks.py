"""The fenced blocks of a page, or the cells of a notebook's script, and what running them means.

`python` blocks of a page share one namespace. What they print is compared with the `output` block that follows: word
by word, numbers to one part in a thousand, numbers in scientific notation to their order of magnitude, groups of
three digits such as `-052` to 5 (rounding errors differ from machine to machine). `bash` blocks are lines of
`emulon …` or `python -m …`, run in this process.
`<!-- not run: reason -->` before a block leaves it to a reader; its Python must compile, and its commands must have
options that exist. `<!-- needs: module -->` does so only where that module is not installed. A block whose docstring is
`NAME.py` is saved as that file, too, as its page asks of readers. There is no set-up that they do not see.
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
import shlex
import sys
import tomllib
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from emulon.cli import COMMANDS, main, options_of

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "making"))
from notebooks import as_page  # noqa: E402 (docs/making is no package)

PART = re.compile(
    r"(?:<!-- not run: (?P<reason>[^\n]{10,}) -->\n)?(?:<!-- needs: (?P<needs>\w+) -->\n)?"
    r"^```(?P<kind>\w*)[^\n]*\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
FILE = re.compile(r'"""(\w+\.py)"""\n')
GROUP = re.compile(r"(?<!\S)[+-]\d{3}(?!\S)")  # the last digits of a number in the text language
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")


@dataclass(frozen=True)
class Block:
    kind: str
    body: str
    line: int
    reason: str = ""
    needs: str = ""

    @property
    def is_left_out(self) -> bool:
        return bool(self.reason) or (bool(self.needs) and find_spec(self.needs) is None)


def blocks(page: Path) -> list[Block]:
    text, found = as_page(page) if page.suffix == ".py" else page.read_text(encoding="utf-8"), []
    for part in PART.finditer(text):
        line = text.count("\n", 0, part.start("body")) + 1
        found.append(Block(part["kind"], part["body"], line, part["reason"] or "", part["needs"] or ""))
    return found


def commands(body: str) -> list[list[str]]:
    """The words of every command; comments are left out, `&&` and a line's end separate."""
    words = [shlex.split(line, comments=True) for line in body.replace("\\\n", " ").splitlines()]
    return [part for line in words for part in _split(line) if part]


def _split(words: list[str]) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for word in words:
        if word == "&&":
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def run(page: Path) -> None:
    """Every block of the page in order, in the current folder."""
    namespace, printed = {"__name__": "__main__"}, None
    for block in blocks(page):
        where = f"{page.relative_to(ROOT) if page.is_relative_to(ROOT) else page}:{block.line}"
        if block.is_left_out:
            parsed(block, where)
        elif block.kind == "python":
            printed = _printed(block, page, namespace)
        elif block.kind == "bash":
            for words in commands(block.body):
                started = words[0] == "emulon" or words[:2] == ["python", "-m"]
                assert started, f"{where}: {words[0]} is not run here; say why not"
                out, complaint = io.StringIO(), io.StringIO()
                with contextlib.redirect_stdout(out), contextlib.redirect_stderr(complaint):
                    code = main(words[1:]) if words[0] == "emulon" else module_of(words[2]).main(words[3:])
                assert code == 0, f"{where}: {shlex.join(words)} ended with {code}: {complaint.getvalue()}"
                printed = out.getvalue()
        elif block.kind == "output":
            assert printed is not None, f"{where}: nothing was printed before"
            assert same(block.body, printed), f"{where}: the page says\n{block.body}and it is\n{printed}"
        else:
            assert block.kind == "text", f"{where}: say whether this is python, bash or text, not {block.kind!r}"


def _printed(block: Block, page: Path, namespace: dict[str, object]) -> str:
    out = io.StringIO()
    if title := FILE.match(block.body):
        Path(title[1]).write_text(block.body, encoding="utf-8")
    # Empty lines before it, so that a traceback names the page's own line.
    code = compile("\n" * (block.line - 1) + block.body, str(page), "exec")
    with contextlib.redirect_stdout(out):
        exec(code, namespace)
    return out.getvalue()


def same(said: str, printed: str) -> bool:
    """Whether they have the same words and nearly the same numbers."""
    groups, others = (list(map(int, GROUP.findall(text))) for text in (said, printed))
    if len(groups) != len(others) or any(abs(one - other) > 5 for one, other in zip(groups, others, strict=True)):
        return False
    said, printed = GROUP.sub("group", said), GROUP.sub("group", printed)
    if NUMBER.sub("#", said).split() != NUMBER.sub("#", printed).split():
        return False
    return all(_near(one, other) for one, other in zip(NUMBER.findall(said), NUMBER.findall(printed), strict=True))


def _near(said: str, printed: str) -> bool:
    a, b = float(said), float(printed)
    if "e" in said:
        return a * b > 0 and 0.1 <= a / b <= 10
    return abs(a - b) <= 1e-3 * max(abs(a), abs(b))


def parsed(block: Block, where: str) -> None:
    """As much as can be known of a block without running it."""
    if block.kind == "python":
        ast.parse(block.body)
    elif block.kind == "bash":
        for words in commands(block.body):
            _known(words, where)


def module_of(name: str) -> ModuleType:
    """What `python -m NAME` runs."""
    module = import_module(name)
    return import_module(f"{name}.__main__") if hasattr(module, "__path__") else module


def _known(words: list[str], where: str) -> None:
    program, *rest = words
    if program == "emulon" and rest[0] == "--completion":
        assert rest[1] in ("bash", "zsh", "tcsh"), f"{where}: there is no shell {rest[1]}"
    elif program == "emulon":
        assert rest[0] in COMMANDS, f"{where}: there is no command {rest[0]}"
        options_of(rest[0], rest[1:])
    elif program == "make":
        rules = re.findall(r"^([\w/.]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(rest) <= set(rules), f"{where}: make has no rule for {set(rest) - set(rules)}"
    elif program.endswith("pip"):
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        asked = {name for word in rest for group in re.findall(r"\[([\w,]+)\]", word) for name in group.split(",")}
        assert asked <= set(extras), f"{where}: there is no extra {asked - set(extras)}"
    elif program == "nice":
        _known(rest[2:], where)
    elif rest[:2] == ["-m", "reproduce.text.train"]:
        _known(["emulon", "train", *rest[2:]], where)
    elif program.startswith("python") and rest[0] == "-m":
        if rest[1].partition(".")[0] in ("reproduce", "benchmarks"):
            module = module_of(rest[1])
            read = module.arguments().read if hasattr(module, "arguments") else module.read
            read(rest[2:])
        else:
            import_module(rest[1])
    elif program.startswith("python"):
        script = (ROOT / rest[0]).read_text(encoding="utf-8")
        unknown = [word for word in rest if word.startswith("--") and f'"{word}"' not in script]
        assert not unknown, f"{where}: {rest[0]} has no {unknown}"
    else:
        assert program in ("git", "cd", "pytest", "."), f"{where}: what is {program}?"
