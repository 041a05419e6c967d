"""A Spark Standalone cluster: a master and workers, each a process with its own directory."""

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from icestream.broker_process import free_port
from icestream.pipeline.spark.java import java_home, spark_home
from icestream_servers.process import HOST, ServerProcess

_DAEMON_JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


class _SparkProcess(ServerProcess):
    def environ(self) -> dict[str, str]:
        return super().environ() | {
            "JAVA_HOME": str(java_home()),
            "SPARK_HOME": str(spark_home()),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": _DAEMON_JAVA_OPTIONS,
            "PYSPARK_PYTHON": sys.executable,
        }

    def spark_class(self, name: str, *arguments: str) -> list[str]:
        program = spark_home() / "bin" / "spark-class"
        return [str(program), f"org.apache.spark.deploy.{name}", "--host", HOST, *arguments]


class SparkMaster(_SparkProcess):
    """The master. `port` is that of its web page; jobs go to `master`."""

    name = "spark-master"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._job_port = free_port()

    @property
    def master(self) -> str:
        return f"spark://{HOST}:{self._job_port}"

    def command(self) -> Sequence[str]:
        ports = ("--port", str(self._job_port), "--webui-port", str(self.port))
        return self.spark_class("master.Master", *ports)

    def is_ready(self) -> bool:
        return bool(self.state())

    def state(self) -> dict[str, Any]:
        """Return workers and applications from the master's web page; empty if it does not respond."""
        answer = self.get("/json/")
        return dict(json.loads(answer)) if answer else {}


class SparkWorker(_SparkProcess):
    name = "spark-worker"

    def __init__(self, directory: Path, master: SparkMaster, *, cores: int, memory: str) -> None:
        super().__init__(directory)
        self._master = master
        self._resources = ("--cores", str(cores), "--memory", memory)
        self._worker_port = free_port()

    def command(self) -> Sequence[str]:
        ports = ("--port", str(self._worker_port), "--webui-port", str(self.port))
        return self.spark_class("worker.Worker", *ports, *self._resources, self._master.master)

    def environ(self) -> dict[str, str]:
        folders = {"SPARK_WORKER_DIR": "work", "SPARK_LOCAL_DIRS": "scratch"}
        return super().environ() | {name: str(self.directory / folder) for name, folder in folders.items()}

    def is_ready(self) -> bool:
        """Return whether the master has registered the worker."""
        workers = self._master.state().get("workers", [])
        return any(worker["port"] == self._worker_port and worker["state"] == "ALIVE" for worker in workers)

    def executor_pids(self) -> list[int]:
        """Return the processes that run tasks now."""
        children = Path(f"/proc/{self.pid}/task").glob("*/children")
        return [int(pid) for child in children for pid in child.read_text().split()]


class SparkCluster:
    """`with SparkCluster(directory) as cluster:`, then jobs go to `cluster.master`."""

    def __init__(
        self, directory: Path, *, workers: int = 2, cores_per_worker: int = 1, memory_per_worker: str = "1g"
    ) -> None:
        self.spark_master = SparkMaster(directory / "master")
        self.workers = [
            SparkWorker(
                directory / f"worker-{number}", self.spark_master, cores=cores_per_worker, memory=memory_per_worker
            )
            for number in range(workers)
        ]
        self._running = ExitStack()

    @property
    def master(self) -> str:
        """The URL for Spark."""
        return self.spark_master.master

    def start(self) -> Self:
        with ExitStack() as starting:
            starting.enter_context(self.spark_master)
            for worker in self.workers:
                starting.enter_context(worker)
            self._running = starting.pop_all()
        return self

    def stop(self) -> None:
        self._running.close()

    def settings(self) -> dict[str, Any]:
        """Return icestream's settings for a pipeline on this cluster, with the largest executors that fit."""
        spark = {"spark.executor.memory": "512m", "spark.driver.host": HOST, "spark.driver.bindAddress": HOST}
        return {"pipeline": {"master": self.master, "spark": spark}}

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
