"""Runs pages in fresh processes, with the packages that a reader of the page has: `python -W error fresh.py`.

Reads `PAGE<tab>FOLDER` from standard input, line by line, and answers with a line of JSON: "" or what went wrong.
Each page runs in that folder, in a process forked for it, in which only the base dependencies can be imported, and the
extras that the text of the page names. Before the forks, what pages import is imported and nothing of it is called:
that halves the time.
"""

import contextlib
import json
import os
import pkgutil
import re
import sys
import tomllib
import traceback
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
USED = ["torch._dynamo", "pandas", "sklearn.linear_model", "sklearn.datasets", "scipy.stats"]
LLAMAS = ["transformers.models.llama.modeling_llama", "transformers.models.gpt2.modeling_gpt2"]


def normal(name: str) -> str:
    return name.lower().replace("_", "-")


def needed(requirements: list[str]) -> set[str]:
    """Names of the packages that come with these requirements."""
    found, left = {"emulon"}, list(requirements)
    while left:
        name = normal(re.split(r"[^\w.-]", left.pop())[0])
        if name not in found:
            found.add(name)
            with contextlib.suppress(PackageNotFoundError):
                left += [word for word in requires(name) or () if "extra ==" not in word]
    return found


BASE = needed(PROJECT["dependencies"])
OWNERS = {module: {normal(name) for name in names} for module, names in packages_distributions().items()}


def installed(page: Path) -> set[str]:
    """What readers have: the base, and the extras that they are told of, as `emulon[hf]` or `[hf]`."""
    text = re.sub(r"<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    named = {name for group in re.findall(r"\[([\w,]+)\]", text) for name in group.split(",")}
    return BASE | needed([word for name in named & set(EXTRAS) for word in EXTRAS[name]])


class Reader(PathFinder):
    """Finds what a reader has installed; the other packages of this machine are absent."""

    present = BASE

    @classmethod
    def lacks(cls, module: str) -> bool:
        owners = OWNERS.get(module.partition(".")[0])
        return bool(owners) and not owners & cls.present

    @classmethod
    def find_spec(cls, fullname, path=None, target=None) -> ModuleSpec | None:
        return None if cls.lacks(fullname) else PathFinder.find_spec(fullname, path, target)


def answer(page: Path, folder: Path) -> None:
    import blocks

    Reader.present = installed(page)
    for name in [name for name in sys.modules if Reader.lacks(name)]:
        del sys.modules[name]  # imported for another page
    os.chdir(folder)
    wrong = ""
    try:
        blocks.run(page)
    except BaseException:
        wrong = traceback.format_exc(limit=-4)
    print(json.dumps(wrong), flush=True)


def imported(names: list[str]) -> None:
    for name in names:
        with contextlib.suppress(ModuleNotFoundError):  # of an extra
            import_module(name)


def main() -> None:
    import emulon

    sys.meta_path[:] = [Reader if finder is PathFinder else finder for finder in sys.meta_path]
    sys.path.append(str(ROOT))
    modules = [module.name for module in pkgutil.walk_packages(emulon.__path__, "emulon.")]
    imported(USED + [name for name in modules if "__main__" not in name])
    for line in sys.stdin:
        page, folder = map(Path, line.rstrip("\n").split("\t"))
        if not Reader.present >= (those := installed(page)):
            Reader.present = Reader.present | those
            imported([name for name in LLAMAS if "transformers" in those])
        if os.fork() == 0:
            answer(page, folder)
            os._exit(0)
        os.wait()


if __name__ == "__main__":
    main()
