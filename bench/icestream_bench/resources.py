"""What a process holds and has used, as the kernel counts it."""

import contextlib
import os
from pathlib import Path


def process_resources(pid: int) -> dict[str, int]:
    """Memory, open files and threads."""
    status = Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return {
        "rss_mb": int(fields["VmRSS"].split()[0]) // 1024,
        "peak_rss_mb": int(fields["VmHWM"].split()[0]) // 1024,
        "open_files": len(list(Path(f"/proc/{pid}/fd").iterdir())),
        "threads": int(fields["Threads"]),
    }


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has used, in itself and in the kernel."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system = int(after_name[11]), int(after_name[12])
    return (user + system) / os.sysconf("SC_CLK_TCK")


def bytes_read() -> int:
    """What this process has read so far, from whatever file, also if the kernel had it in memory."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])


def tree_cpu_seconds(pid: int) -> float:
    """Processor time that a process and those that it has started, as far as they still run, have used."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
    family = [pid]
    for member in family:
        family += [child for child, parent in parents.items() if parent == member]
    return sum(map(cpu_seconds, family))
