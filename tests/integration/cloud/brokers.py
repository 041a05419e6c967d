"""A broker whose log goes to an object store, and tables beside it that outlive it."""

import contextlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.topics import InlineJobs

from icestream.broker_process import BrokerProcess
from icestream.client import Client
from icestream.config import Settings
from icestream.model.messages import message_batch
from icestream.model.names import TopicName
from icestream.pipeline.driver import Runner
from icestream.pipeline.one_pass import JobRunner
from icestream.pipeline.report import PassFigures
from icestream.table import Tables, TopicTable

_COMMAND_SECONDS = 300


class Site:
    """One broker at a time on `data`, and what is elsewhere: objects, catalog and tables."""

    def __init__(self, path: Path, *, cloud: Mapping[str, str] | None = None, interval_seconds: int = 3600) -> None:
        self.path = path
        self.data = path / "data"
        objects = cloud or {"backend": "fs", "root": str(path / "objects")}
        self.environ = {
            **{f"ICESTREAM_CLOUD__{name.upper()}": value for name, value in objects.items()},
            "ICESTREAM_UPLOADER__ENABLED": "true",
            "ICESTREAM_UPLOADER__INTERVAL_SECONDS": str(interval_seconds),
            "ICESTREAM_CATALOG__URI": f"sqlite:///{path / 'catalog.db'}",
            "ICESTREAM_CATALOG__WAREHOUSE": str(path / "warehouse"),
        }
        self.broker = BrokerProcess(self.data, environ=self.environ, log_file=path / "broker.log")
        self.tables = Tables(self.settings())

    def settings(self, **sections: dict[str, Any]) -> Settings:
        given: dict[str, dict[str, Any]] = {}
        for name, value in self.environ.items():
            section, _, key = name.removeprefix("ICESTREAM_").lower().partition("__")
            given.setdefault(section, {})[key] = value
        for section, values in sections.items():
            given[section] = given.get(section, {}) | values
        pipeline = {"broker_timeout_ms": 0, "retry_interval_ms": 50} | given.get("pipeline", {})
        return Settings.model_validate({"data_dir": self.data, **given, "pipeline": pipeline})

    @contextlib.contextmanager
    def client(self) -> Iterator[Client]:
        with Client(self.broker.flight) as client:
            yield client

    def command(self, *arguments: str) -> str:
        """What an `icestream` command prints, given the broker's settings and address; it has to succeed."""
        environ = {name: value for name, value in os.environ.items() if not name.startswith("ICESTREAM_")}
        done = subprocess.run(
            [sys.executable, "-m", "icestream.cli", *arguments, "--broker", self.broker.flight],
            env=environ | self.environ,
            capture_output=True,
            text=True,
            timeout=_COMMAND_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def publish(self, topic: str, batch: pa.RecordBatch | Sequence[bytes], *, flush: bool = False) -> None:
        with self.client() as client:
            with client.producer(topic) as producer:
                producer.send_batch(batch if isinstance(batch, pa.RecordBatch) else message_batch(batch)).result()
            if flush:
                client.flush_topic(topic)

    def lose_disk(self, *, keep_metadata: bool) -> None:
        """What a dead broker had, but for its metadata if that is elsewhere."""
        kept = [self.data / name for name in ("metadata.db", "metadata.db-wal", "metadata.db-shm")]
        aside = self.path / "aside"
        aside.mkdir()
        for file in kept:
            if keep_metadata and file.exists():
                file.rename(aside / file.name)
        shutil.rmtree(self.data)
        self.data.mkdir()
        for file in aside.iterdir():
            file.rename(self.data / file.name)
        aside.rmdir()

    def runner(self, jobs: JobRunner | None = None, **sections: dict[str, Any]) -> Runner:
        client = Client(self.broker.flight)
        return Runner(self.settings(**sections), client, self.tables, jobs if jobs is not None else InlineJobs())

    def drain(self, jobs: JobRunner | None = None, **sections: dict[str, Any]) -> PassFigures:
        with self.runner(jobs, **sections) as runner:
            figures = runner.drain(threading.Event())
        errors = [found.error for found in figures.topics.values() if found.error]
        assert not errors, errors
        return figures

    def table(self, topic: str) -> TopicTable:
        found = self.tables.find(TopicName.parse(topic))
        assert found is not None, topic
        return found

    def rows(self, topic: str) -> pa.Table:
        """All rows of a topic's table, by offset."""
        rows = self.table(topic).iceberg.scan().to_arrow()
        return rows.sort_by(str(rows.column_names[0]))

    def close(self) -> None:
        self.tables.close()
        if self.broker.is_running:
            self.broker.kill()
