"""A topic on a broker in this process, in one storage format after the other, and a look at its Parquet copy."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
from tests.integration.flight.conftest import Running
from tests.integration.pipeline.conftest import InlineJobs
from tests.reading import FAR_US, TOPIC, reading_settings

from icestream.client import Client
from icestream.config import Settings
from icestream.model.enums import StorageFormat
from icestream.model.messages import message_batch
from icestream.model.names import TopicName, copy_of
from icestream.pipeline.driver import Runner
from icestream.pipeline.one_pass import JobRunner
from icestream.pipeline.report import PassFigures
from icestream.storage.retention import prune_logs
from icestream.storage.verify import BrokerLogs, Verification, verify_topic
from icestream.table import Tables, TopicTable

NAME = TopicName.parse(TOPIC)
COPY = copy_of(NAME)
PATIENCE_SECONDS = 60.0


def offsets_by_glob(folder: Path) -> list[int]:
    """What an engine sees that knows nothing but the folders: offsets in order, each as often as it is there."""
    if not list(folder.rglob("*.parquet")):
        return []
    files = f"read_parquet('{folder}/**/*.parquet', hive_types = {{'date': DATE, 'hour': INT}})"
    found = duckdb.sql(f'SELECT "offset" FROM {files} ORDER BY 1').fetchall()
    wrong = duckdb.sql(
        f"SELECT count(*) FROM {files} WHERE date <> (publish_time AT TIME ZONE 'UTC')::date "
        "OR hour <> hour(publish_time AT TIME ZONE 'UTC')"
    ).fetchone()
    assert wrong == (0,), "a row lies in the folder of another hour"
    return [offset for (offset,) in found]


class Place:
    """Segments are small and may go at once, so that readers and pipelines need the tables."""

    def __init__(self, path: Path, **sections: Any) -> None:
        self.path = path
        self._sections = sections
        self._format = StorageFormat.ICEBERG
        self._running: Running | None = None
        self._client: Client | None = None
        self._made: list[Runner | Tables] = []
        self.published = 0

    @property
    def folder(self) -> Path:
        return self.path / "parquet" / NAME.namespace / NAME.name

    def settings(self, **sections: Any) -> Settings:
        merged = {**self._sections, **sections}
        own = {"format": self._format.value, **self._sections.get("storage", {})}
        merged["storage"] = {**own, **sections.get("storage", {})}
        merged["pipeline"] = {"retry_interval_ms": 20, **merged.get("pipeline", {})}
        return reading_settings(self.path, **merged)

    def start(self, storage_format: str) -> None:
        """A broker with this format, in place of the one before."""
        self.stop()
        self._format = StorageFormat(storage_format)
        settings = self.settings()
        fields = {name: getattr(settings, name) for name in type(settings).model_fields if name != "data_dir"}
        self._running = Running(self.path, **fields)
        self._client = Client(self._running.address)
        self._running.storage.topics.create(TOPIC, if_not_exists=True)

    @property
    def running(self) -> Running:
        assert self._running is not None
        return self._running

    @property
    def client(self) -> Client:
        assert self._client is not None
        return self._client

    def publish(self, count: int = 10, size: int = 200) -> None:
        numbers = range(self.published, self.published + count)
        with self.client.producer(TOPIC) as producer:
            for number in numbers:
                producer.send_batch(message_batch([b"%d %s" % (number, b"x" * size)])).result(PATIENCE_SECONDS)
        self.published += count

    def runner(self, jobs: JobRunner | None = None, **sections: Any) -> Runner:
        """A pipeline that is not told of the format by its own settings."""
        settings = self.settings(**{"storage": {"format": "iceberg"}, **sections})
        tables = Tables(settings)
        runner = Runner(settings, self.client, tables, jobs or InlineJobs())
        self._made += [runner, tables]
        return runner

    def drain(self, runner: Runner | None = None) -> PassFigures:
        figures = (runner or self.runner()).drain(threading.Event())
        errors = [topic.error for topic in figures.topics.values() if topic.error]
        assert not errors, errors
        return figures

    def prune(self) -> int:
        """Have the broker look at the tables, and the log give up what they have; where it begins then."""
        storage = self.running.storage
        topic = storage.topic(TOPIC)
        _ = topic.log  # only the logs that are open are pruned
        storage.table_watch._look(topic)
        prune_logs([topic], storage.settings.wal.retention, FAR_US)
        return topic.log.start_offset

    # What is there

    def tables(self) -> Tables:
        made = Tables(self.settings())
        self._made.append(made)
        return made

    def table(self, name: TopicName = NAME) -> TopicTable:
        found = self.tables().find(name)
        assert found is not None
        return found

    def committed(self, name: TopicName) -> int:
        found = self.tables().find(name)
        return found.ledger.committed_offset if found is not None else 0

    def check_readers(self, starts: Sequence[int] = (0, 7, 13)) -> None:
        """Whatever is where, everything that was published can be read from any offset on, once and in order."""
        for start in starts:
            if start <= self.published:
                rows = self.client.read(TOPIC, start=start)
                assert rows.column("offset").to_pylist() == list(range(start, self.published))
                assert [int(payload.split()[0]) for payload in rows.column("payload").to_pylist()] == list(
                    range(start, self.published)
                )
        counted = self.client.sql('SELECT count(*) AS n, count(DISTINCT "offset") AS d FROM default.events')
        assert counted.to_pylist() == [{"n": self.published, "d": self.published}]

    def check_fed(self) -> None:
        """The tables that the format feeds have each offset once, and so do the folders."""
        for name in self._format.fed(NAME):
            rows = self.table(name).iceberg.scan().to_arrow().sort_by("offset")
            assert rows.column("offset").to_pylist() == list(range(self.published)), name
            assert self.committed(name) == self.published
        self.check_folders()

    def check_folders(self) -> None:
        """The folders hold what their table says and nothing else, each offset once."""
        assert offsets_by_glob(self.folder) == list(range(self.committed(COPY)))

    def verify(self) -> Verification:
        report = verify_topic(NAME, BrokerLogs(self.client).view, self.tables())
        assert report.is_sound, report.findings
        return report

    def stop(self) -> None:
        for made in self._made:
            made.close()
        self._made = []
        if self._client is not None:
            self._client.close()
        if self._running is not None:
            self._running.close()
        self._client = self._running = None
