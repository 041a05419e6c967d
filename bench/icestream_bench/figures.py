"""Figures of a measurement: latencies, and what a process uses as the kernel counts it."""

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Latencies:
    """Percentiles in milliseconds."""

    count: int
    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of(cls, seconds: Iterable[float]) -> "Latencies":
        ordered = sorted(seconds)
        if not ordered:
            raise ValueError("no measurement was taken")

        def at(share: float) -> float:
            return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000, 4)

        return cls(len(ordered), at(0.5), at(0.9), at(0.99), round(ordered[-1] * 1000, 4))


def process_resources(pid: int) -> dict[str, int]:
    """Return memory, open files and threads of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return {
        "rss_mb": int(fields["VmRSS"].split()[0]) // 1024,
        "peak_rss_mb": int(fields["VmHWM"].split()[0]) // 1024,
        "open_files": len(list(Path(f"/proc/{pid}/fd").iterdir())),
        "threads": int(fields["Threads"]),
    }


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used, in user and kernel mode."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system = int(after_name[11]), int(after_name[12])
    return (user + system) / os.sysconf("SC_CLK_TCK")


def tree_cpu_seconds(pid: int) -> float:
    """Return the processor time that a process and its running descendants have used."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
    family = [pid]
    for member in family:
        family += [child for child, parent in parents.items() if parent == member]
    return sum(map(cpu_seconds, family))


def bytes_read() -> int:
    """Return how many bytes this process has read so far, from disk or from the kernel's cache."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])
