"""The map: imports point downwards only, and importing emulon needs no more than torch."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import emulon

SOURCE = Path(emulon.__file__).parent
ROOT = Path(__file__).parents[1]
# Lowest first. A part may import itself and what stands on a line below its own.
MAP = [
    {"core"},
    {"expressions"},
    {"certify"},
    {"algorithms", "attention"},
    {"softmax"},
    {"interpreter"},
    {"constructions"},
    {"networks"},
    {"machine", "looped"},
    {"language"},
    {"tasks"},
    {"models", "testing", "planted", "canary"},
    {"training"},
    {"identification"},
    {"tables", "planted.benchmark"},
    {"estimators", "run", "export"},
    {"playground"},
    {"report"},
    {"cli"},
]
RANK = {part: rank for rank, parts in enumerate(MAP) for part in parts}
# Narrower than their rank: attention stands on nothing, algorithms take of certify only the domain.
ONLY = {"attention": {"core.errors"}, "algorithms": {"core", "expressions", "certify.domain"}}


def part_named(module: str) -> str:
    """The part on the map that a module belongs to: the longest of its beginnings that is there, or its first word."""
    words = module.split(".")
    starts = [".".join(words[:count]) for count in range(len(words), 0, -1)]
    return next((start for start in starts if start in RANK), words[0])


def part_of(path: Path) -> str:
    return part_named(".".join(path.relative_to(SOURCE).with_suffix("").parts))


def imports(path: Path) -> set[str]:
    """The modules of ours that a file imports, anywhere in it, without the leading `emulon.`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide where they point"
            module = node.module or ""
            found |= {f"emulon.{alias.name}" for alias in node.names} if module == "emulon" else {module}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {module.removeprefix("emulon.") for module in found if module.startswith("emulon.")}


FILES = sorted(path for path in SOURCE.rglob("*.py") if part_of(path) != "__init__")


def test_every_part_is_on_the_map() -> None:
    assert FILES and {part_of(path) for path in FILES} - {"__main__"} <= set(RANK)


@pytest.mark.parametrize("part", sorted({part_of(path) for path in FILES} & set(RANK)))
def test_imports_point_downwards(part: str) -> None:
    for path in FILES:
        if part_of(path) != part:
            continue
        for module in imports(path):
            other = part_named(module)
            if other == part:
                continue
            # `from emulon import Domain` names what certify offers through the front door.
            other = "certify" if other in emulon.__all__ and other not in RANK else other
            assert RANK[other] < RANK[part], f"{path.relative_to(SOURCE)} imports {module}, which is not below {part}"
            allowed = ONLY.get(part)
            assert allowed is None or module in allowed or other in allowed, f"{path.name} imports {module}"


def test_nothing_in_the_wheel_imports_the_scripts() -> None:
    assert ROOT.joinpath("reproduce/__main__.py").exists()
    for path in SOURCE.rglob("*.py"):
        assert not re.search(r"^\s*(from|import) (reproduce|benchmarks)\b", path.read_text(), re.MULTILINE), path


HEAVY = [
    "sympy",
    "flint",
    "scipy",
    "sklearn",
    "threadpoolctl",
    "tyro",
    "rich",
    "jinja2",
    "transformers",
    "onnx",
]
BLOCKED = f"""
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        # Torch may look for some of these by itself, and can do without.
        frame = sys._getframe(1)
        while frame and "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        ours = frame.f_globals.get("__name__", "").startswith(("emulon", "reproduce", "benchmarks"))
        if name.split(".")[0] in {HEAVY!r} and ours:
            raise ImportError(f"{{name}} is needed to import emulon")

sys.meta_path.insert(0, Blocker())
"""


def run(code: str) -> subprocess.CompletedProcess:
    environment = {"PYTHONPATH": f"{SOURCE.parent}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", f"{BLOCKED}\n{code}"]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_importing_needs_only_torch_numpy_and_jaxtyping() -> None:
    done = run("import emulon, emulon.algorithms, emulon.attention, emulon.constructions")
    assert done.returncode == 0, done.stderr


def test_the_blocker_blocks() -> None:
    assert "sympy is needed to import emulon" in run("from emulon.expressions import parse; parse('t')").stderr


BARE = """
from dataclasses import replace
from reproduce import __main__ as command
from reproduce.algoformer import figure_2
from reproduce.arguments import run_script

gpu = figure_2.CLAIM.scales["small"]
tiny = replace(gpu, sizes=gpu.sizes | {"tasks": {task: {"steps": 3, "batch": 2} for task in gpu.sizes["tasks"]}})
command.claim_named = lambda name: replace(figure_2.CLAIM, name=name, scales={"gpu": tiny})
asked = ["trained", "--scale", "gpu", "--out", OUT], ["trained", "--scael", "gpu"]
print(*(run_script("reproduce", command.main, words) for words in asked))

from benchmarks import devices
devices.REPEATS = 1
print(devices.main(["measure", PROGRAMS, "--out", OUT + "/devices.json", "--device", "cpu", "--rows", "2000"]))
"""
PROGRAMS = SOURCE.parents[1] / "results/bench/devices"


def test_claims_and_programs_are_measured_with_torch_alone(tmp_path: Path) -> None:
    done = run(f"OUT, PROGRAMS = {str(tmp_path)!r}, {str(PROGRAMS)!r}\n{BARE}")
    assert "0 2\n" in done.stdout and done.stdout.endswith("}\n0\n"), done.stderr
    lines = json.loads((tmp_path / "devices.json").read_text())["lines"]
    assert [line["case"] for line in lines] == ["ridge", "lasso", "logistic"]
    assert max(line["off"] for line in lines) < 1e-6
    assert (tmp_path / "claims" / "trained.gpu.json").exists() and "did you mean --scale?" in done.stderr
