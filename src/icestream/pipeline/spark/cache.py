"""The cache folder: what was obtained once and is used by every installation of this user.

It is `$ICESTREAM_CACHE`, else `icestream` in `$XDG_CACHE_HOME`, else `~/.cache/icestream`. Everything in it can be
deleted at any time and is obtained again. An entry is complete from the moment it has its name: it is built under
another name, synced and renamed, by one process at a time.
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
    """A program or library that this machine lacks and that could not be obtained."""

    code = "not_installed"


def silent(_line: str) -> None:
    """Reports to nobody."""


def cache_dir() -> Path:
    if chosen := os.environ.get("ICESTREAM_CACHE"):
        return Path(chosen).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).absolute() if base else Path.home() / ".cache") / "icestream"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Only one process at a time is in the block; another waits."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def obtain(target: Path, build: Callable[[Path], None]) -> Path:
    """The folder or file `target`, which `build` makes at the path it is given if it is not there yet."""
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
    """A folder in a locked one, gone after the block. Any other found there was left by a process that was killed."""
    for left in folder.glob(f"{_SCRATCH}*"):
        shutil.rmtree(left, ignore_errors=True)
    path = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=folder))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def place(built: Path, target: Path) -> None:
    """Give what was built its name, once its bytes are on the disk: a cut of the power leaves no half of it."""
    for path in (built, *built.rglob("*")):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    built.rename(target)
