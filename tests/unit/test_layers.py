"""What import-linter cannot see: which packages may import which libraries."""

import ast
from pathlib import Path

import pytest

import icestream

SOURCE = Path(icestream.__file__).parent
ALLOWED = {
    "pyarrow.flight": {"server", "client"},
    "pyspark": {"pipeline", "spark"},
    "pyiceberg": {"table"},
    "duckdb": {"query"},
    "starlette": {"server"},
    "uvicorn": {"server"},
    "click": {"cli"},
    "rich": {"cli"},
}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    return found


@pytest.mark.parametrize("library", ALLOWED)
def test_a_library_is_imported_only_by_the_packages_that_own_it(library: str) -> None:
    guilty = {
        path.relative_to(SOURCE)
        for path in SOURCE.rglob("*.py")
        if any(name == library or name.startswith(f"{library}.") for name in imports(path))
    }
    assert {path.parts[0] for path in guilty} <= ALLOWED[library], guilty
