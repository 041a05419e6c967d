"""Named places where a test can have the process killed, as the system kills it: nothing is flushed, nobody is told.

`ICESTREAM_CRASH_AT=before-commit` kills every process that comes there. `ICESTREAM_CRASH_AT=before-commit@FILE` kills
the first one only: it makes the file, and whoever finds it there passes by. Several points are given with commas.

In tasks: `before-write`, `mid-write` (the first batch was handed to the writer), `after-write`, and `offset-17`: the
batch with that offset is about to be handed to the writer, as of a message that takes down whoever touches it.
In the driver: `after-plan`, `before-commit`, `after-commit` (the broker was not told yet), `after-quarantine-file`.
"""

import os
import signal

import pyarrow as pa

VARIABLE = "ICESTREAM_CRASH_AT"


def crash_point(name: str) -> None:
    for point in os.environ.get(VARIABLE, "").split(","):
        chosen, _, once = point.partition("@")
        if chosen == name and _is_first(once):
            os.kill(os.getpid(), signal.SIGKILL)


def crash_at_offset(batch: pa.RecordBatch) -> None:
    """The points `offset-N`, for a batch of a stream in offset order."""
    if "offset-" not in os.environ.get(VARIABLE, "") or not batch.num_rows:
        return
    first, last = batch.column(0)[0].as_py(), batch.column(0)[-1].as_py()
    for point in os.environ[VARIABLE].split(","):
        name, _, number = point.partition("@")[0].partition("-")
        if name == "offset" and first <= int(number) <= last:
            crash_point(f"{name}-{number}")


def _is_first(file: str) -> bool:
    """Make the file; whether nobody had made it before. Without one everybody is the first."""
    try:
        if file:
            os.close(os.open(file, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
