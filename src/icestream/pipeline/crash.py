"""Named places where a test can have the process killed, as the system kills it: nothing is flushed, nobody is told.

`ICESTREAM_CRASH_AT=before-commit` kills every process that comes there. `ICESTREAM_CRASH_AT=before-commit@FILE` kills
the first one only: it makes the file, and whoever finds it there passes by.

In tasks: `before-write`, `mid-write` (the first batch was handed to the writer), `after-write`.
In the driver: `after-plan`, `before-commit`, `after-commit` (the broker was not told yet).
"""

import os
import signal

VARIABLE = "ICESTREAM_CRASH_AT"


def crash_point(name: str) -> None:
    chosen, _, once = os.environ.get(VARIABLE, "").partition("@")
    if chosen != name:
        return
    if once:
        try:
            os.close(os.open(once, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
    os.kill(os.getpid(), signal.SIGKILL)
