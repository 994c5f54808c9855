"""Habits that no linter sees: reasons beside ignores, real annotations, plain words, Args in public docstrings."""

import ast
import importlib
import inspect
import re
import tokenize
import tomllib
import typing
from pathlib import Path

import pytest
import torch

import emulon

SOURCE = Path(emulon.__file__).parent
ROOT = Path(__file__).parents[1]
# Packages of the repository that are not in the wheel.
SCRIPTS = [ROOT / "reproduce", ROOT / "benchmarks"]
FILES = [path for folder in (SOURCE, *SCRIPTS, ROOT / "tests") for path in sorted(folder.rglob("*.py"))]
MODULES = [
    ".".join(path.relative_to(folder.parent).with_suffix("").parts).removesuffix(".__init__")
    for folder in (SOURCE, *SCRIPTS)
    for path in sorted(folder.rglob("*.py"))
    if path.stem != "__main__"
]
# A reason follows the code: "# why" after the one, "(why)" or "— why" after the other.
REASONED = re.compile(r"(# type: ignore\[[\w, -]+\]  # \w.{5,})|(# noqa: [A-Z]+\d+ (\(|— )\w.{5,})")

PACKAGES = sorted(path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists())
# Figures of speech for things that have a technical name.
RIDDLES = re.compile(
    r"\b(nobody|whoever|anybody|lies? told|is told|are told|said of|be felt|can be felt|dress(ed|es)?|disguises?|"
    r"specimens?|idle|apart|anatomy|interrogat\w+|hunts?|rooms?|in the house|stretch(es)?|seams?|promis\w+|forgets?|"
    r"knows? nothing|what was before)\b",
    re.IGNORECASE,
)


def comments(path):
    with path.open("rb") as file:
        return [
            (each.start[0], each.string) for each in tokenize.tokenize(file.readline) if each.type == tokenize.COMMENT
        ]


def bare_ignores(path):
    found = [(line, text) for line, text in comments(path) if "type: ignore" in text or "noqa" in text]
    return [f"{path.name}:{line}: {text}" for line, text in found if not REASONED.search(text)]


def side_effects(source):
    """Names that a module imports at its top and neither uses nor offers in `__all__`: only the import can matter."""
    tree = ast.parse(source)
    imported = {
        (alias.asname or alias.name).split(".")[0]
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom) and getattr(node, "module", "") != "__future__"
        for alias in node.names
    }
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    used |= {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return imported - used


# What puts a tensor on the default device unless it is told another. Models are made where
# torch makes modules, which `TrainConfig.make_learner` decides.
CREATORS = re.compile(
    r"arange|as_tensor|asarray|empty|eye|full|linspace|logspace|normal|ones|rand|randint|randn|randperm|range|"
    r"scalar_tensor|tensor|tril_indices|triu_indices|zeros"
)
FREE = ("models",)


def on_the_default_device(source):
    """Lines that create a tensor and do not say where: on a GPU, or nowhere, whatever the caller has chosen."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [
        call.lineno
        for call in calls
        if isinstance(call.func, ast.Attribute)
        and ast.unparse(call.func.value) == "torch"
        and CREATORS.fullmatch(call.func.attr)
        and not any(keyword.arg in ("device", None) for keyword in call.keywords)
    ]


def for_type_checkers(module):
    """What a module imports under `if TYPE_CHECKING`, so as not to wait for it: imported here."""
    found = {}
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            block = ast.Module([each for each in node.body if isinstance(each, ast.Import | ast.ImportFrom)], [])
            exec(compile(block, module.__name__, "exec"), found)
    return found


def annotated(module):
    """The classes and functions that a module itself defines, and their methods."""
    own = [one for one in vars(module).values() if getattr(one, "__module__", "") == module.__name__]
    for one in own:
        if inspect.isclass(one):
            yield one
            # What a dataclass writes for itself repeats its fields' annotations, those of its bases included.
            methods = [method for method in vars(one).values() if inspect.isfunction(method)]
            yield from (method for method in methods if inspect.unwrap(method).__code__.co_filename != "<string>")
        elif inspect.isfunction(one):
            yield one


def test_every_ignore_has_its_reason_beside_it():
    assert [line for path in FILES for line in bare_ignores(path)] == []


def test_nothing_is_imported_for_its_side_effect():
    unused = {path.relative_to(SOURCE): side_effects(path.read_text()) for path in SOURCE.rglob("*.py")}
    assert {path: names for path, names in unused.items() if names} == {}


def test_every_tensor_is_created_on_a_named_device():
    paths = [path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).parts[0] not in FREE]
    found = {str(path.relative_to(SOURCE)): on_the_default_device(path.read_text()) for path in paths}
    assert not {name: lines for name, lines in found.items() if lines}


@pytest.mark.parametrize("name", MODULES)
def test_annotations_name_what_exists(name):
    """A name that is nowhere defined passes every run until somebody asks; here somebody asks."""
    module = importlib.import_module(name)
    elsewhere = for_type_checkers(module)
    for one in annotated(module):
        typing.get_type_hints(one, localns=elsewhere)


def test_the_recipes_name_files_that_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"(?:src|reproduce|benchmarks|tests|docs|results)/[\w./-]*\w", text))
    assert len(named) > 15 and [path for path in named if not (ROOT / path).exists()] == []


def test_one_version_everywhere():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.M)[1] == declared
    assert re.search(r"^## (?!Unreleased)(.*)$", (ROOT / "CHANGELOG.md").read_text(), re.M)[1] == declared


def test_these_rules_can_be_broken(tmp_path):
    bare = tmp_path / "bare.py"
    marks = "type: ignore", "type: ignore[misc]", "noqa", "noqa: F401"
    bare.write_text("".join(f"x = 1  # {mark}\n" for mark in marks) + "y = 'type: ignore'\n")
    assert len(bare_ignores(bare)) == len(marks)
    bare.write_text("x = 1  # type: ignore[misc]  # mypy cannot know\ny = 1  # noqa: B018 (asking is what refuses)\n")
    assert bare_ignores(bare) == []
    assert side_effects("import os\nimport emulon.tasks\nfrom a import b, c\nprint(os, c)") == {"emulon", "b"}
    assert side_effects("from a import b\n__all__ = ['b']") == set()
    assert on_the_default_device("torch.zeros(2)\ntorch.eye(3, device=x.device)\ntorch.zeros_like(x)") == [1]


def test_types_and_shapes_are_checked_while_tests_run():
    from beartype.roar import BeartypeCallHintParamViolation

    from emulon.algorithms.gradient_descent import look_ahead
    from emulon.certify.rounding import accumulated

    with pytest.raises(BeartypeCallHintParamViolation):
        look_ahead(0, torch.zeros(2), torch.zeros(3))
    with pytest.raises(BeartypeCallHintParamViolation):
        accumulated("one", 1, 1.0)


def prose(path):
    """Docstrings, and strings that stand alone below fields, which are the help of commands."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def riddles(package):
    files = (SOURCE / package).rglob("*.py") if package else SOURCE.glob("*.py")
    return [
        f"{path.relative_to(SOURCE)}:{line}: {match[0]}"
        for path in sorted(files)
        for line, text in prose(path)
        for match in RIDDLES.finditer(text)
    ]


def without_args(package):
    """Functions and classes in `__all__` that take arguments and describe none."""
    module = importlib.import_module(f"emulon.{package}")
    found = []
    for name in getattr(module, "__all__", ()):
        one = getattr(module, name)
        if not (inspect.isfunction(one) or inspect.isclass(one)) or (
            inspect.isclass(one) and issubclass(one, Exception)
        ):
            continue
        text = (one.__doc__ or "") + (one.__init__.__doc__ or "" if inspect.isclass(one) else "")
        if {*parameters_of(one)} - {"args", "kwargs"} and not re.search(r"^\s*(Args|Attributes):$", text, re.MULTILINE):
            found.append(name)
    return found


def parameters_of(one):
    try:
        return list(inspect.signature(one).parameters)
    except (TypeError, ValueError):
        return []


@pytest.mark.parametrize("package", ["", *PACKAGES])
def test_docstrings_and_help_have_no_riddles(package):
    found = riddles(package)
    assert not found, "\n".join(found)


def test_pages_have_no_riddles():
    """Beside code, and names in code's type."""
    code = re.compile(r"^```.*?^```|`[^`\n]*`|<!--.*?-->", re.MULTILINE | re.DOTALL)
    texts = {path.name: code.sub("", path.read_text()) for path in sorted((ROOT / "docs").rglob("*.md"))}
    assert {name: found for name, text in texts.items() if (found := RIDDLES.findall(text))} == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_describe_their_arguments(package):
    assert without_args(package) == []


def test_a_riddle_is_found():
    assert RIDDLES.search("Nobody listens.") and not RIDDLES.search("No-op progress callback.")
