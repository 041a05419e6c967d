"""A pipeline's processes, as the system knows them: the driver, its JVM, and the Python workers below that."""

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from tests.fault.pipeline.oracle import PATIENCE_SECONDS

WORKER = "icestream.pipeline.spark.worker"


def children(pid: int) -> list[int]:
    found: set[int] = set()
    with contextlib.suppress(OSError):  # it has ended meanwhile
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found.update(int(text) for text in (thread / "children").read_text().split())
    return sorted(found)


def descendants(pid: int) -> list[int]:
    found = children(pid)
    return [*found, *(deeper for child in found for deeper in descendants(child))]


def command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def jvms(driver: int) -> list[int]:
    return [pid for pid in children(driver) if "java" in command(pid).partition(" ")[0]]


def worker_parents(driver: int) -> list[int]:
    """The processes that workers are forked from."""
    return [pid for jvm in jvms(driver) for pid in children(jvm) if WORKER in command(pid)]


def workers(driver: int) -> list[int]:
    return [pid for parent in worker_parents(driver) for pid in children(parent)]


def kill(pid: int) -> None:
    assert pid > 1, "nobody to kill"
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def have_stacks_written(pids: Iterable[int]) -> None:
    """Have Python processes end with the stacks of their threads in their log, to be read after a failure."""
    for pid in pids:
        if "python" in command(pid).partition(" ")[0]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGABRT)
    time.sleep(1)


def wait_for_end(pid: int) -> None:
    """Fails if a process is still there after a long while, and ends it then."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ended, _, _ = select.select([descriptor], [], [], PATIENCE_SECONDS)
        if not ended:
            left = command(pid)
            kill(pid)
            raise AssertionError(f"process {pid} was left behind: {left}")
    finally:
        os.close(descriptor)
