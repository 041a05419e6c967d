"""The package's conventions that no other tool checks: who imports which library, names, log events, docstrings."""

import ast
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


def test_every_package_has_a_docstring_of_substance() -> None:
    thin = {
        str(path.parent)
        for path, tree in trees().items()
        if path.name == "__init__.py" and len((ast.get_docstring(tree) or "").split()) < 8
    }
    assert thin == set()
