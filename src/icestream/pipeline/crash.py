"""Named places where a test can have the process killed, as the system kills it: nothing is flushed, nobody is told.

`ICESTREAM_CRASH_AT=before-commit` kills every process that comes there. `ICESTREAM_CRASH_AT=before-commit@FILE` kills
the first one only: it makes the file, and whoever finds it there passes by. Several points are given with commas.

In tasks: `before-write`, `mid-write` (the first batch was handed to the writer), `after-write`.
In the driver: `after-plan`, `before-commit`, `after-commit` (the broker was not told yet).
"""

import os
import signal

VARIABLE = "ICESTREAM_CRASH_AT"


def crash_point(name: str) -> None:
    for point in os.environ.get(VARIABLE, "").split(","):
        chosen, _, once = point.partition("@")
        if chosen == name and _is_first(once):
            os.kill(os.getpid(), signal.SIGKILL)


def _is_first(file: str) -> bool:
    """Make the file; whether nobody had made it before. Without one everybody is the first."""
    try:
        if file:
            os.close(os.open(file, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
