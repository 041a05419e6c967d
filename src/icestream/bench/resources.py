"""What a process holds and has used, as the kernel counts it."""

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
