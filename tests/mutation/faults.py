"""Small faults of a source: a term or a factor dropped, a number halved, a check gone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import CodeType

# Words for people, and shapes: not what is asked about here.
NOT_THESE = ("__str__", "__repr__", "extra_repr", "__all__")
SHAPES = ("dim", "keepdim", "axis", "dtype", "name", "maxsize", "strict", "frozen")


@dataclass(frozen=True)
class Fault:
    """`text` in place of what stands from `start` to `end` (line, byte), in the function `owner`, by qualified name."""

    kind: str
    owner: str
    start: tuple[int, int]
    end: tuple[int, int]
    before: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.start[0]}:{self.start[1]} {self.kind}: {self.before} → {self.text}"

    def planted(self, source: str) -> str:
        lines = [line.encode() for line in source.splitlines(keepends=True)]
        (first, left), (last, right) = self.start, self.end
        head, tail = lines[first - 1][:left], lines[last - 1][right:]
        lines[first - 1 : last] = [head + self.text.encode() + tail]
        return b"".join(lines).decode()


def faults(source: str) -> list[Fault]:
    return list(dict.fromkeys(_inside(ast.parse(source).body, "", source)))


def _inside(body: list[ast.stmt], owner: str, source: str) -> Iterator[Fault]:
    """In functions, and in constants of the module; class bodies are searched for functions alone."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            functions = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            yield from _inside(list(functions), f"{owner}{node.name}.", source)
        elif isinstance(node, ast.FunctionDef) and node.name not in NOT_THESE:
            for part in node.body:
                yield from _of(part, f"{owner}{node.name}", source)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and not owner and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and target.id not in NOT_THESE:
                yield from _of(node.value, f"={target.id}", source)
                yield from _in_text(node.value, f"={target.id}", source)


def _in_text(node: ast.expr, owner: str, source: str) -> Iterator[Fault]:
    """In formulas that stand as text, `name = expression` to a line, between a first and a last line without any."""
    if not (isinstance(node, ast.Constant) and isinstance(node.value, str) and node.end_lineno):
        return
    for line in range(node.lineno + 1, node.end_lineno):
        head, equals, text = source.splitlines()[line - 1].partition(" = ")
        if not equals:
            continue
        formula, left = ast.parse(text, mode="eval").body, len(f"{head} = ".encode())
        yield Fault("halve", owner, (line, left), (line, left + len(text.encode())), text, f"({text})/2")
        for each in _of(formula, owner, text):
            ends = ((line, left + each.start[1]), (line, left + each.end[1]))
            yield replace(each, start=ends[0], end=ends[1])


def _of(node: ast.AST, owner: str, source: str) -> Iterator[Fault]:
    for kind, text in _changes(node):
        assert isinstance(node, ast.expr | ast.stmt) and node.end_lineno is not None and node.end_col_offset is not None
        before = " ".join((ast.get_source_segment(source, node) or "").split())
        text = text if isinstance(node, ast.stmt) else f"({text})"
        ends = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
        yield Fault(kind, owner, *ends, before, text)
    for child in _children(node):
        yield from _of(child, owner, source)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.JoinedStr() | ast.Raise() | ast.Import() | ast.ImportFrom():
            return
        case ast.Subscript():
            yield node.value
            if not isinstance(node.slice, ast.Constant | ast.Tuple | ast.Slice | ast.UnaryOp):
                yield node.slice
        case ast.AnnAssign():
            yield from [node.value] if node.value else []
        case ast.FunctionDef() | ast.Lambda():
            yield from node.body if isinstance(node.body, list) else [node.body]
        case ast.Call():
            yield node.func
            yield from node.args
            yield from (each.value for each in node.keywords if each.arg not in SHAPES)
        case _:
            yield from ast.iter_child_nodes(node)


def _changes(node: ast.AST) -> Iterator[tuple[str, str]]:
    match node:
        case ast.BinOp(left, ast.Add() | ast.Sub() as op, right):
            sign = "-" if isinstance(op, ast.Sub) else ""
            yield "drop a term", ast.unparse(left)
            yield "drop a term", f"{sign}({ast.unparse(right)})"
        case ast.BinOp(left, ast.Mult() | ast.Div() as op, right):
            yield "drop a factor", ast.unparse(left)
            if isinstance(op, ast.Mult):
                yield "drop a factor", ast.unparse(right)
            elif not isinstance(left, ast.Constant):
                yield "drop a factor", f"1 / ({ast.unparse(right)})"
        case ast.BinOp(left, ast.Pow(), right):
            yield "drop a factor", ast.unparse(left)
        case ast.AugAssign(op=op) if isinstance(op, ast.Add | ast.Sub | ast.Mult | ast.BitOr):
            yield "drop a term", "pass"
        case ast.BoolOp(op, values):
            for k in range(len(values)):
                rest = values[:k] + values[k + 1 :]
                yield "check gone", ast.unparse(rest[0] if len(rest) == 1 else ast.BoolOp(op, rest))
        case ast.If(test, body, orelse) if not (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"):
            without = ast.unparse(ast.If(ast.Constant(False), body, orelse))
            yield "check gone", without.replace("\n", "\n" + " " * node.col_offset)
        case ast.Constant(float() as value) if value:
            yield "halve", repr(value / 2)
        case ast.Call(ast.Attribute(value, "add_" | "sub_"), [_], []):
            yield "drop a term", ast.unparse(value)
        case ast.Call(ast.Attribute(value, "mul_" | "div_"), [_], []):
            yield "drop a factor", ast.unparse(value)
        case ast.Return(ast.Name() | ast.BinOp() | ast.Call() as value):
            yield "halve", f"return ({ast.unparse(value)}) / 2"
        case ast.Dict(keys, values) if keys and all(isinstance(key, ast.Constant) for key in keys):
            for k, value in enumerate(values):
                if isinstance(value, ast.BinOp | ast.Call | ast.Name):
                    halved = [*values[:k], ast.BinOp(value, ast.Div(), ast.Constant(2)), *values[k + 1 :]]
                    yield "halve", ast.unparse(ast.Dict(keys, halved))


def code_of(module: CodeType, owner: str) -> CodeType | None:
    """The function's own code in a module's, by qualified name."""
    pending = [module]
    while pending:
        code = pending.pop()
        if code.co_qualname == owner:
            return code
        pending += [each for each in code.co_consts if isinstance(each, CodeType)]
    return None
