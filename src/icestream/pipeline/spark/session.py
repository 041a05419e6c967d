"""The pipeline's Spark session. It starts fast, and its first job finds warm workers.

The pipeline needs a Spark context and nothing of Spark SQL. Settings give the master and further properties. The
properties here keep start-up and small jobs short:

- no web interface; with a local master everything is on the loopback address, and no name is looked up;
- workers are forked from a process that has imported what tasks need, are kept, and are reached by Unix sockets (over
  TCP a task waited 40 ms for a delayed acknowledgement);
- on `local[N]` a task is tried four times, as on a cluster. Spark's default there is one try.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext

from icestream.config import Settings
from icestream.model.errors import IcestreamError
from icestream.pipeline.spark.class_archive import archive_options
from icestream.pipeline.spark.java import java_home
from icestream.pipeline.tasks import Written, write_parcels

LOOPBACK = "127.0.0.1"
WORKER_MODULE = "icestream.pipeline.spark.worker"
_LOCAL = re.compile(r"local\[(\*|[0-9]+)\]|local")
_TASK_TRIES = 4
_JVM_END_SECONDS = 30.0
_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")


class JobFailedError(IcestreamError):
    """Spark failed a job, because one of its tasks killed its worker several times."""

    code = "job_failed"
    retryable = True


class SessionLostError(IcestreamError):
    """The driver's JVM or the cluster is gone. A new session is needed."""

    code = "session_lost"


class Spark:
    """A Spark context, and the one kind of job that runs on it. One a process."""

    def __init__(self, settings: Settings) -> None:
        os.environ["JAVA_HOME"] = str(java_home())
        os.environ.setdefault("PYSPARK_PYTHON", settings.pipeline.spark.get("spark.pyspark.python", sys.executable))
        if is_local(settings.pipeline.master):
            os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
        conf = SparkConf(loadDefaults=False)
        conf.setAll(list(properties(settings).items()))
        with _own_interrupt_handler():
            self._context = SparkContext(conf=conf)
        self.parallelism = settings.pipeline.parallelism or self._context.defaultParallelism
        self._warm_up()

    def run(self, parcels: Sequence[bytes]) -> list[Written]:
        """Run one job, with a task for each parcel."""
        try:
            return self._context.parallelize(parcels, len(parcels)).mapPartitions(write_parcels).collect()
        except Py4JJavaError as error:
            if self._lost():
                raise self._loss(error) from error
            raise JobFailedError(
                _reason(error), operation="run job", remedy="see the pipeline's log for the worker's last output"
            ) from error
        except (Py4JError, OSError, AttributeError) as error:  # a stopped context has no attributes
            raise self._loss(error) from error

    def close(self) -> None:
        self._context.stop()
        end_jvm()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _warm_up(self) -> None:
        """Make the JVM load its classes and fork every worker, before the first message waits."""
        count = self.parallelism
        self._context.parallelize([b""] * count, count).mapPartitions(_nothing).collect()

    def _lost(self) -> bool:
        try:
            return bool(self._context._jsc is None or self._context._jsc.sc().isStopped())  # noqa: SLF001
        except (Py4JError, OSError, AttributeError):
            return True

    def _loss(self, error: Exception) -> SessionLostError:
        return SessionLostError(
            f"the Spark session is gone: {_reason(error)}", operation="run job", remedy="start the pipeline again"
        )


class SparkOnDemand:
    """A session that starts with the first job."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._started: Spark | None = None

    @property
    def parallelism(self) -> int:
        return self._session().parallelism

    def run(self, parcels: Sequence[bytes]) -> list[Written]:
        return self._session().run(parcels)

    def close(self) -> None:
        if self._started is not None:
            self._started.close()

    def _session(self) -> Spark:
        if self._started is None:
            self._started = Spark(self._settings)
        return self._started


def end_jvm() -> None:
    """End the JVM of a stopped context. PySpark would keep it for a next context."""
    gateway = SparkContext._gateway  # noqa: SLF001 - there is no other way to it
    if gateway is None:
        return
    gateway.shutdown()
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(_JVM_END_SECONDS)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001


def is_local(master: str) -> bool:
    return master.startswith("local")


def properties(settings: Settings) -> dict[str, str]:
    """Return Spark's properties. Those of the settings replace ours."""
    pipeline = settings.pipeline
    master = pipeline.master
    java = f"{pipeline.java_options} {' '.join(archive_options(settings))} -Dlog4j2.configurationFile={_LOG_SETTINGS}"
    chosen = {
        "spark.app.name": "icestream pipeline",
        "spark.master": f"local[{cores(master)},{_TASK_TRIES}]" if _LOCAL.fullmatch(master) else master,
        "spark.submit.deployMode": "client",
        "spark.driver.memory": f"{pipeline.driver_memory_mb}m",
        "spark.driver.extraJavaOptions": java,
        "spark.ui.enabled": str(pipeline.ui).lower(),
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "WARN",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.python.daemon.module": WORKER_MODULE,
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.worker.reuse": "true",
        "spark.task.maxFailures": str(_TASK_TRIES),
        "spark.locality.wait": "0",
    }
    if is_local(master):
        chosen |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    return chosen | pipeline.spark


def cores(master: str) -> str:
    found = _LOCAL.fullmatch(master)
    return (found[1] if found else None) or "1"


@contextlib.contextmanager
def _own_interrupt_handler() -> Iterator[None]:
    """Keep the process's own SIGINT handler. PySpark's would cancel a running job."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _nothing(parcels: Iterable[bytes]) -> Iterable[bytes]:
    """Do nothing, as a task of the same kind as those of `Spark.run`."""
    return parcels


def _reason(error: Exception) -> str:
    """Return the first line of the message. Spark repeats it with every stage and stack trace."""
    said = error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else str(error)
    return (said or type(error).__name__).strip().splitlines()[0]
