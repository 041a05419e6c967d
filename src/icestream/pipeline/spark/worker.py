"""The process that Spark forks its Python workers from, with everything imported that tasks need.

Spark starts it by name (`spark.python.daemon.module`). A fork of it is ready at once, where a plain worker would import
for seconds, and again whenever Spark has let idle workers go.

Spark puts archives (its own Python code, its core jar) on the path of workers and has Python forget what it knows of
the path before each task; reading the archives' directories anew took longer than a small task itself. They are taken
off the path where the same code is installed as plain files.
"""

import ctypes
import gc
import importlib.util
import os
import signal
import sys
import traceback
from types import SimpleNamespace

_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def leave_archives() -> None:
    """Take archives off the path, unless Spark's code can be found nowhere else."""
    plain = [entry for entry in sys.path if not os.path.isfile(entry)]  # noqa: PTH113 - entries need not be paths
    everything, sys.path[:] = list(sys.path), plain
    sys.path_importer_cache.clear()
    if importlib.util.find_spec("pyspark") is None:
        sys.path[:] = everything


def print_unless_left() -> None:
    """Print the current exception, unless Spark has let this worker go: it does so by closing the connection."""
    if not isinstance(sys.exception(), ConnectionError):
        traceback.print_exc()


def die_with_parent() -> None:
    """Have the kernel kill this worker with the process that it was forked from, whatever it waits for then."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def main() -> None:
    """Serve Spark's requests for workers until Spark ends."""
    os.register_at_fork(after_in_child=die_with_parent)
    leave_archives()
    from pyspark import daemon  # noqa: PLC0415 - with the archives on the path it would come from there

    import icestream.pipeline.tasks  # noqa: F401, PLC0415 - forked workers have it at once

    vars(daemon)["traceback"] = SimpleNamespace(print_exc=print_unless_left, format_exc=traceback.format_exc)
    gc.collect()
    gc.freeze()  # workers collect garbage after each task; what is here now will never be any
    daemon.manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
