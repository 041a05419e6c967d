"""Finds a statement or an expression by structure and takes it away.

A target is a function (`wal:Log._admit`: anywhere in `icestream.wal`) and the names that the wanted code uses:
attributes, called functions, classes, keywords, string constants. Local variables, layout, and the file within the
package do not matter. A leading underscore does not matter either.

Every edit must fit exactly one place in its function. If it fits none, or several, `NotFoundError` says what was
looked for.
"""

import ast
import builtins
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

Function = ast.FunctionDef | ast.AsyncFunctionDef
Parents = dict[ast.AST, ast.AST]
Node = TypeVar("Node", bound=ast.AST)


class NotFoundError(Exception):
    """The code that an edit is for is not there, or not only once."""


class Edit(Protocol):
    def apply(self, function: Function) -> None:
        """Change the function's tree in place, or raise `NotFoundError`."""


def names_in(node: ast.AST | Sequence[ast.AST]) -> set[str]:
    """Return every name, attribute, keyword and string constant below a node, without leading underscores."""
    nodes = node if isinstance(node, Sequence) else [node]
    found: set[str] = set()
    for each in nodes:
        for inner in ast.walk(each):
            match inner:
                case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                    found.add(name.lstrip("_"))
                case ast.Constant(value=str(text)):
                    found.add(text)
    return found


def _uses(node: ast.AST | Sequence[ast.AST], names: Sequence[str]) -> bool:
    return {name.lstrip("_") for name in names} <= names_in(node)


def _parents(function: Function) -> Parents:
    return {child: node for node in ast.walk(function) for child in ast.iter_child_nodes(node)}


def _only(found: list[Node], which: tuple[int, int], wanted: str, function: Function) -> Node:
    number, count = which
    if len(found) != count:
        lines = ", ".join(str(getattr(node, "lineno", "?")) for node in found) or "none"
        raise NotFoundError(f"{function.name} has {len(found)} of {wanted}, not {count} (lines: {lines})")
    return found[number - 1]


def _innermost(nodes: list[Node]) -> list[Node]:
    """Leave out nodes that contain another one of them."""
    outer = {
        id(node) for node in nodes for inner in ast.walk(node) if inner is not node and any(inner is n for n in nodes)
    }
    return [node for node in nodes if id(node) not in outer]


def _replace(parents: Parents, old: ast.AST, new: ast.AST | None) -> None:
    """Put `new` where `old` is; without `new`, take `old` out of its list."""
    parent = parents[old]
    for field, value in ast.iter_fields(parent):
        if value is old:
            assert new is not None
            setattr(parent, field, ast.copy_location(new, old))
            return
        if isinstance(value, list) and any(each is old for each in value):
            index = next(index for index, each in enumerate(value) if each is old)
            value[index : index + 1] = [] if new is None else [ast.copy_location(new, old)]
            return
    raise AssertionError(old)


def _expression(source: str) -> ast.expr:
    return ast.parse(source, mode="eval").body


def _smallest_expression(function: Function, names: Sequence[str], which: tuple[int, int]) -> tuple[ast.expr, Parents]:
    """Find the smallest expression that uses all the names; a called function stands for its call."""
    parents = _parents(function)
    found = _innermost([node for node in _body(function) if isinstance(node, ast.expr) and _uses(node, names)])
    found.sort(key=lambda node: (node.lineno, node.col_offset))
    node = _only(found, which, f"an expression with {', '.join(names)}", function)
    parent = parents[node]
    return (parent if isinstance(parent, ast.Call) and parent.func is node else node), parents


def _body(function: Function) -> Iterator[ast.AST]:
    for statement in function.body:
        yield from ast.walk(statement)


@dataclass(frozen=True)
class Drop:
    """Take away the simple statement that uses these names."""

    names: tuple[str, ...]
    which: tuple[int, int] = (1, 1)

    def apply(self, function: Function) -> None:
        simple = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Raise, ast.Delete)
        found = [node for node in _body(function) if isinstance(node, simple) and _uses(node, self.names)]
        found.sort(key=lambda node: node.lineno)
        statement = _only(found, self.which, f"a statement with {', '.join(self.names)}", function)
        _replace(_parents(function), statement, ast.Pass())


@dataclass(frozen=True)
class Test:
    """Fix the outcome of the `if` or `while` whose condition uses `names` and whose body uses `body`."""

    outcome: bool
    names: tuple[str, ...]
    body: tuple[str, ...]
    which: tuple[int, int] = (1, 1)

    def apply(self, function: Function) -> None:
        found = _innermost(
            [
                node
                for node in _body(function)
                if isinstance(node, ast.If | ast.While) and _uses(node.test, self.names) and _uses(node.body, self.body)
            ]
        )
        found.sort(key=lambda node: node.lineno)
        wanted = f"an `if` or `while` on {', '.join(self.names) or 'anything'}"
        wanted += f" around {', '.join(self.body)}" if self.body else ""
        node = _only(found, self.which, wanted, function)
        node.test = ast.copy_location(ast.Constant(self.outcome), node.test)


def never(*names: str, body: tuple[str, ...] = (), which: tuple[int, int] = (1, 1)) -> Test:
    return Test(outcome=False, names=names, body=body, which=which)


def always(*names: str, body: tuple[str, ...] = (), which: tuple[int, int] = (1, 1)) -> Test:
    return Test(outcome=True, names=names, body=body, which=which)


def drop(*names: str, which: tuple[int, int] = (1, 1)) -> Drop:
    return Drop(names, which)


@dataclass(frozen=True)
class Call:
    """Call another function, with the same arguments."""

    name: str
    instead: str

    def apply(self, function: Function) -> None:
        found = [
            node
            for node in _body(function)
            if isinstance(node, ast.Call) and names_in(node.func) & {self.name.lstrip("_")}
        ]
        _only(found, (1, 1), f"a call of {self.name}", function).func = _expression(self.instead)


@dataclass(frozen=True)
class Swap:
    """Replace the smallest expression that uses these names; a called function stands for its call."""

    names: tuple[str, ...]
    by: str
    which: tuple[int, int] = (1, 1)

    def apply(self, function: Function) -> None:
        node, parents = _smallest_expression(function, self.names, self.which)
        _replace(parents, node, _expression(self.by))


@dataclass(frozen=True)
class Argument:
    """Give a call another value for a keyword."""

    keyword: str
    value: str

    def apply(self, function: Function) -> None:
        found = [node for node in _body(function) if isinstance(node, ast.keyword) and node.arg == self.keyword]
        _only(found, (1, 1), f"an argument {self.keyword}=", function).value = _expression(self.value)


@dataclass(frozen=True)
class Element:
    """Take an element out of a list, an operand out of `and`, `or`, `&`; a comprehension becomes an empty list."""

    names: tuple[str, ...]

    def apply(self, function: Function) -> None:
        node: ast.AST
        node, parents = _smallest_expression(function, self.names, (1, 1))
        while not isinstance(node, ast.stmt):
            parent = parents[node]
            match parent:
                case ast.List() | ast.Tuple() | ast.BoolOp():
                    values = parent.values if isinstance(parent, ast.BoolOp) else parent.elts
                    values[:] = [value for value in values if value is not node]
                    if isinstance(parent, ast.BoolOp) and len(values) == 1:
                        _replace(parents, parent, values[0])
                    return
                case ast.BinOp(op=ast.BitAnd()):
                    _replace(parents, parent, parent.right if parent.left is node else parent.left)
                    return
                case ast.ListComp() if parent.elt is node:
                    _replace(parents, parent, ast.List([], ast.Load()))
                    return
            node = parent
        raise NotFoundError(f"{function.name}: {', '.join(self.names)} is in no list and no condition")


@dataclass(frozen=True)
class Unwrap:
    """Replace `value.method(...)` by `value`."""

    method: str

    def apply(self, function: Function) -> None:
        found = [
            node
            for node in _body(function)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == self.method
        ]
        call = _only(found, (1, 1), f"a call of .{self.method}()", function)
        assert isinstance(call.func, ast.Attribute)
        _replace(_parents(function), call, call.func.value)


@dataclass(frozen=True)
class Body:
    """Replace everything that a function does."""

    source: str

    def apply(self, function: Function) -> None:
        function.body = ast.parse(self.source).body


def modules_of(source: Path, package: str) -> list[Path]:
    """Return the files of a package or module, named relative to `source`: `wal`, `wal.log`."""
    path = source.joinpath(*package.split("."))
    return sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]


def _functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if not isinstance(node, ast.ClassDef):
                yield prefix + node.name, node
            yield from _functions(node, f"{prefix}{node.name}.")
        else:
            yield from _functions(node, prefix)


def _bound(module: ast.Module, function: Function) -> set[str]:
    """Return the names that a function may use: its own, the module's, the built-in ones."""
    bound = set(dir(builtins)) | {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    for node in [*ast.walk(function), *_globals(module)]:
        match node:
            case ast.Name(id=name, ctx=ast.Store()):
                bound.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                bound.add(name)
            case ast.alias(name=name, asname=other):
                bound.add(other or name.partition(".")[0])
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                bound.add(name)
    return bound


def _globals(module: ast.Module) -> Iterator[ast.AST]:
    """Return what stands at the module's top level, in `if` and `try` too, but in no function or class."""
    todo: list[ast.AST] = list(module.body)
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            todo.extend(ast.iter_child_nodes(node))


def mutated(source: Path, target: str, edit: Edit) -> tuple[Path, str]:
    """Return the file that holds `package:Class.method`, and its text with the edit made."""
    package, _, name = target.partition(":")
    found = []
    for path in modules_of(source, package):
        if path.exists() and f"def {name.rpartition('.')[2]}(" in (text := path.read_text()):
            tree = ast.parse(text)
            found += [(path, tree, function) for each, function in _functions(tree) if each == name]
    if len(found) != 1:
        raise NotFoundError(f"{package} has {len(found)} functions {name}, not 1")
    ((path, tree, function),) = found
    before = ast.unparse(tree)
    bound = _bound(tree, function)
    edit.apply(function)
    ast.fix_missing_locations(tree)
    after = ast.unparse(tree)
    if after == before:
        raise NotFoundError(f"{name} is the same after the edit")
    used = {node.id for node in _body(function) if isinstance(node, ast.Name)}
    if unknown := used - bound - _bound(tree, function):
        raise NotFoundError(f"{name} has no {', '.join(sorted(unknown))}, which the edit uses")
    compile(after, str(path), "exec")
    return path, after + "\n"


def test_functions(path: Path) -> set[str]:
    """Return the functions of a test file, as pytest names them: `test_it`, `TestClass::test_it`."""
    if not path.exists():
        return set()
    return {name.replace(".", "::") for name, _ in _functions(ast.parse(path.read_text()))}
