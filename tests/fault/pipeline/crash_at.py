"""Run a command in which the pipeline kills itself at named points, as the system would: nothing is flushed.

    python -m tests.fault.pipeline.crash_at POINTS pipeline --once ...

`before-commit` kills every process that reaches the point. `before-commit@FILE` kills the first one only: it creates
the file, and a process that finds the file goes on. Commas separate several points.

Points in tasks: `before-write`, `mid-write` (the writer has the first batch), `after-write`, and `offset-17`: a batch
with that offset is about to go to the writer. Points in the driver: `after-plan`, `before-commit`, `after-commit`
(the broker does not know yet), `after-quarantine-file`.

With `inline` among the points the driver runs its tasks itself, without Spark: a driver that is killed several times is
then started again in a second. It has no workers that could be killed.

The product has none of these points: this module wraps the functions around them, in the driver and, as the module
that Spark forks its Python workers from, in the tasks. It imports late, because a worker cleans its path before it
imports pyspark.
"""

import functools
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from icestream.model.messages import end_offset, first_offset
from icestream.pipeline.spark import worker

VARIABLE = "CRASH_AT"
_ROOT = Path(__file__).parents[3]
TASK_POINTS = ("before-write", "mid-write", "after-write")
DRIVER_POINTS = ("after-plan", "before-commit", "after-commit")
INLINE = "inline"


def crashing(points: str) -> list[str]:
    """The command line that stands for `icestream`."""
    return [sys.executable, "-m", __spec__.name, points]


def crashing_environ() -> Mapping[str, str]:
    """What a process with that command line needs, so that it and Spark's workers find this module."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))}


def crash_point(name: str) -> None:
    for point in os.environ.get(VARIABLE, "").split(","):
        chosen, _, once = point.partition("@")
        if chosen == name and _is_first(once):
            os.kill(os.getpid(), signal.SIGKILL)


def _is_first(file: str) -> bool:
    """Create the file; return whether it was not there. Without a file every process is the first."""
    try:
        if file:
            os.close(os.open(file, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def _crash_at_offset(batch: pa.RecordBatch) -> None:
    """Reach the points `offset-N` of a batch, whose offsets ascend."""
    if not batch.num_rows:
        return
    for point in os.environ.get(VARIABLE, "").split(","):
        name, _, number = point.partition("@")[0].partition("-")
        if name == "offset" and first_offset(batch) <= int(number) < end_offset(batch):
            crash_point(f"{name}-{number}")


def _wrap(owner: Any, name: str, *, before: str | None = None, after: str | None = None) -> None:
    wrapped: Callable[..., Any] = getattr(owner, name)  # a name that is gone fails here, and the test with it

    @functools.wraps(wrapped)
    def wrapper(*arguments: Any, **named: Any) -> Any:
        if before is not None:
            crash_point(before)
        result = wrapped(*arguments, **named)
        if after is not None:
            crash_point(after)
        return result

    setattr(owner, name, wrapper)


class _InlineSpark:
    """Stands for the Spark session."""

    parallelism = 2

    def __init__(self, _settings: object) -> None:
        pass

    def run(self, parcels: Sequence[bytes]) -> list[Any]:
        from icestream.pipeline.tasks import write_parcels  # noqa: PLC0415 - late, see the top

        return list(write_parcels(parcels))

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _wrap_driver() -> None:
    from icestream.pipeline import one_pass  # noqa: PLC0415 - late, see the top
    from icestream.pipeline.quarantine.quarantine import Quarantine  # noqa: PLC0415 - late, see the top
    from icestream.pipeline.spark import session  # noqa: PLC0415 - late, see the top
    from icestream.table import TopicTable  # noqa: PLC0415 - late, see the top

    assert worker.__name__ == session.WORKER_MODULE
    session.WORKER_MODULE = "tests.fault.pipeline.crash_at"
    if INLINE in os.environ[VARIABLE].split(","):
        setattr(session, "Spark", _InlineSpark)  # noqa: B010 - a plain assignment has another type
    _wrap(one_pass.PassRunner, "_cut_ranges", after="after-plan")
    _wrap(TopicTable, "commit", before="before-commit", after="after-commit")
    _wrap(Quarantine, "_keep_frame", after="after-quarantine-file")


def _wrap_tasks() -> None:
    from icestream.pipeline import tasks  # noqa: PLC0415 - late, see the top

    _wrap(tasks, "_write_range", before="before-write", after="after-write")
    count = tasks._ByteCounter.count

    def crashing_count(size: tasks._ByteCounter, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in count(size, batches):
            _crash_at_offset(batch)
            yield batch
            crash_point("mid-write")

    setattr(tasks._ByteCounter, "count", crashing_count)  # noqa: B010 - a plain assignment has no type


def _is_worker() -> bool:
    """Whether Spark started this: it gives a module of workers no arguments of ours."""
    return VARIABLE in os.environ


def main() -> None:
    if _is_worker():
        worker.leave_archives()  # before anything imports pyspark
        _wrap_tasks()
        worker.main()
        return
    os.environ[VARIABLE] = sys.argv.pop(1)
    _wrap_driver()
    from icestream.cli.main import main as run_command  # noqa: PLC0415 - late, see the top

    run_command()


if __name__ == "__main__":
    main()
