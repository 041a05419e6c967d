"""The process that Spark forks its Python workers from. It has imported everything that tasks need.

Spark starts it by name (`spark.python.daemon.module`). A fork of it is ready at once. A plain worker would import for
seconds, and again whenever Spark has ended idle workers.

Spark puts archives (its own Python code, its core jar) on the path of workers, and clears Python's import caches before
each task. Reading the archives' directories again took longer than a small task. So archives are taken off the path if
the same code is installed as plain files. Packages that were found in an archive before go too: Python's `pickle` looks
for a package `org`, and the core jar has one.
"""

import ctypes
import gc
import importlib.util
import os
import signal
import sys
import traceback
from types import ModuleType, SimpleNamespace

_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def leave_archives() -> None:
    """Take archives off the path, unless Spark's code is nowhere else."""
    plain = [entry for entry in sys.path if not os.path.isfile(entry)]  # noqa: PTH113 - entries need not be paths
    everything, sys.path[:] = list(sys.path), plain
    sys.path_importer_cache.clear()
    if importlib.util.find_spec("pyspark") is None:
        sys.path[:] = everything
        return
    archives = tuple(set(everything) - set(plain))
    found = [name for name, module in sys.modules.items() if _is_in(archives, module)]
    for name in found:
        del sys.modules[name]


def _is_in(archives: tuple[str, ...], module: ModuleType) -> bool:
    return any(path.startswith(archives) for path in getattr(module, "__path__", ()))


def print_unless_left() -> None:
    """Print the current exception, unless Spark ended this worker, which it does by closing the connection."""
    if not isinstance(sys.exception(), ConnectionError):
        traceback.print_exc()


def die_with_parent() -> None:
    """Have the kernel kill this worker when the process that forked it ends."""
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
    gc.freeze()  # workers collect garbage after each task; objects that exist now stay
    daemon.manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
