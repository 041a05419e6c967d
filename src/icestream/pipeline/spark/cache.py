"""The cache folder: files that are obtained once and used by every installation of this user.

It is `$ICESTREAM_CACHE`, else `icestream` in `$XDG_CACHE_HOME`, else `~/.cache/icestream`. Everything in it can be
deleted at any time and is obtained again. An entry is complete once it has its name: one process builds it under
another name, syncs it and renames it.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from icestream.model.errors import IcestreamError

Report = Callable[[str], None]
_SCRATCH = ".building-"


class NotInstalledError(IcestreamError):
    """This machine lacks a program or library, and it could not be obtained."""

    code = "not_installed"


def silent(_line: str) -> None:
    """Drop a report."""


def cache_dir() -> Path:
    if chosen := os.environ.get("ICESTREAM_CACHE"):
        return Path(chosen).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).absolute() if base else Path.home() / ".cache") / "icestream"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let one process at a time into the block; others wait."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def obtain(target: Path, build: Callable[[Path], None]) -> Path:
    """Return the folder or file `target`. If it is missing, `build` makes it at the path that it gets."""
    if target.exists():
        return target
    with locked(target.parent):
        if not target.exists():
            with scratch(target.parent) as room:
                build(room / target.name)
                place(room / target.name, target)
    return target


@contextlib.contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """Yield a folder in a locked one, removed after the block. Remove others, which killed processes left."""
    for left in folder.glob(f"{_SCRATCH}*"):
        shutil.rmtree(left, ignore_errors=True)
    path = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=folder))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def place(built: Path, target: Path) -> None:
    """Sync what was built, then give it its name: a power cut leaves no half of it."""
    for path in (built, *built.rglob("*")):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    built.rename(target)
