import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from icestream.testing.history import PATIENCE_SECONDS

ENSURE_STRACE = Path(__file__).parents[3] / "dev" / "ensure_strace.sh"


def missing(what: str) -> None:
    """With CI=true a test that cannot run is a failure, elsewhere it is skipped."""
    if os.environ.get("CI") == "true":
        pytest.fail(what)
    pytest.skip(what)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 6 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(path)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        missing(f"a small disk cannot be mounted: {mounted.stderr.strip()}")
    yield path
    subprocess.run(["umount", str(path)], check=True)


@pytest.fixture(scope="session")
def strace() -> str:
    found = subprocess.run([str(ENSURE_STRACE)], capture_output=True, text=True, check=False)
    if found.returncode:
        missing(found.stderr.strip().splitlines()[-1])
    return found.stdout.strip()


@contextmanager
def failing_calls(strace: str, pid: int, calls: str, fault: str) -> Iterator[None]:
    """Lets system calls of a running process fail, as strace's `inject` says, until the end of the block."""
    options = ["-e", f"trace={calls}", "-e", f"inject={calls}:{fault}", "-e", "signal=none", "-o", "/dev/null"]
    tracer = subprocess.Popen([strace, "-f", *options, "-p", str(pid)], stderr=subprocess.PIPE, text=True)
    try:
        assert tracer.stderr is not None
        first = tracer.stderr.readline()
        if "attached" not in first:
            missing(f"strace cannot attach: {first.strip()}")
        yield
    finally:
        tracer.terminate()
        tracer.communicate(timeout=PATIENCE_SECONDS)
