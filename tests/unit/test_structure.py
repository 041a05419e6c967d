"""The package's conventions that no other tool checks: who imports which library, names, log events, docstrings."""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

import icestream

SOURCE = Path(icestream.__file__).parent
ALLOWED = {
    "pyarrow.flight": {"server", "client"},
    "pyspark": {"pipeline", "spark"},
    "pyiceberg": {"table"},
    "duckdb": {"query"},
    "opendal": {"cloud"},
    "grpc": {"metadata", "server"},
    "starlette": {"server"},
    "uvicorn": {"server"},
    "click": {"cli"},
    "rich": {"cli"},
}
GENERATED = {Path("metadata/etcd/messages.py")}
LOG_METHODS = {"debug", "info", "warning", "error", "exception", "critical"}
LOGGERS = re.compile(r"(^|_)(log|logger)$", re.IGNORECASE)
STRUCTURED_EVENT = re.compile(r"[a-z0-9]+(_[a-z0-9]+)+")
FORMATTED_EVENT = re.compile(r"[a-z0-9]+(_[a-z0-9]+)+( [a-z0-9_]+=%[sdr.0-9f]+)*")
"""Of the standard library's logging, which the light client uses: `publish_stream_lost reason=%s`."""


@cache
def trees() -> dict[Path, ast.Module]:
    return {path.relative_to(SOURCE): ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}


@cache
def imports() -> dict[str, set[Path]]:
    """Return for every imported name the files that import it."""
    found: dict[str, set[Path]] = defaultdict(set)
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    found[alias.name].add(path)
            elif isinstance(node, ast.ImportFrom) and node.module:
                for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                    found[name].add(path)
    return found


@pytest.mark.parametrize("library", ALLOWED)
def test_a_library_is_imported_only_by_the_packages_that_own_it(library: str) -> None:
    guilty = set[Path]().union(
        *(files for name, files in imports().items() if name == library or name.startswith(f"{library}."))
    )
    assert {path.parts[0] for path in guilty} <= ALLOWED[library], guilty


def test_a_class_name_stands_for_one_class() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path, tree in trees().items():
        if path not in GENERATED:
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    places[node.name].append(f"{path}:{node.lineno}")
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_log_events_are_snake_case_names() -> None:
    wrong = []
    for path, tree in trees().items():
        uses_structlog = path in imports().get("structlog", set()) or path in _users_of_safe_loggers()
        event = STRUCTURED_EVENT if uses_structlog else FORMATTED_EVENT
        for node in ast.walk(tree):
            if not (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in LOG_METHODS
                and LOGGERS.search(_last_name(node.func.value))
                and node.args
            ):
                continue
            first = node.args[0]
            if isinstance(first, ast.Name):  # handed on by a wrapper, whose callers are checked
                continue
            if not (isinstance(first, ast.Constant) and isinstance(first.value, str) and event.fullmatch(first.value)):
                wrong.append(f"{path}:{node.lineno}: {ast.unparse(first)}")
    assert wrong == []


@cache
def _users_of_safe_loggers() -> set[Path]:
    return {
        path
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and _last_name(node.func) in {"SafeLogger", "get_logger"}
    }


def _last_name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=function):
            return _last_name(function)
    return ""


def test_every_package_has_a_docstring_of_substance() -> None:
    thin = {
        str(path.parent)
        for path, tree in trees().items()
        if path.name == "__init__.py" and len((ast.get_docstring(tree) or "").split()) < 8
    }
    assert thin == set()
