"""A real broker, real tables, and two ways to run jobs: a real Spark session, and the same tasks in this process."""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from icestream.broker_process import BrokerProcess
from icestream.client import Client
from icestream.config import Settings
from icestream.model.messages import message_batch
from icestream.model.names import TopicName
from icestream.pipeline.driver import Runner
from icestream.pipeline.one_pass import JobRunner
from icestream.pipeline.report import PassFigures
from icestream.pipeline.spark.session import Spark
from icestream.pipeline.tasks import Written, write_parcels
from icestream.table import Tables


class InlineJobs:
    """Runs tasks where it is called, and counts jobs."""

    parallelism = 2

    def __init__(self) -> None:
        self.jobs = 0

    def run(self, parcels: Sequence[bytes], /) -> list[Written]:
        self.jobs += 1
        return list(write_parcels(parcels))


class Pipelines:
    """Runners for the topics of one namespace, and a look into their tables."""

    def __init__(
        self,
        data_dir: Path,
        broker: str,
        namespace: str,
        jobs: JobRunner | None = None,
        tables: Tables | None = None,
    ) -> None:
        self.namespace = namespace
        self.client = Client(broker)
        self.data_dir = data_dir
        self._jobs = jobs if jobs is not None else InlineJobs()
        self.tables = tables or Tables(Settings(data_dir=data_dir))
        self._made: list[Runner] = []

    def settings(self, **sections: dict[str, Any]) -> Settings:
        fields: dict[str, Any] = dict(sections)
        ours = {"topics": f"{self.namespace}/*", "retry_interval_ms": 50}
        fields["pipeline"] = ours | fields.get("pipeline", {})
        return Settings(data_dir=self.data_dir, **fields)

    def runner(
        self, jobs: JobRunner | None = None, *, tables: Tables | None = None, **sections: dict[str, Any]
    ) -> Runner:
        runner = Runner(
            self.settings(**sections), self.client, tables or self.tables, jobs if jobs is not None else self._jobs
        )
        self._made.append(runner)
        return runner

    def drain(self, runner: Runner) -> PassFigures:
        figures = runner.drain(threading.Event())
        errors = [topic.error for topic in figures.topics.values() if topic.error]
        assert not errors, errors
        return figures

    def topic(self, name: str) -> TopicName:
        return TopicName(self.namespace, name)

    def publish(self, name: str, *batches: pa.RecordBatch | list[bytes]) -> None:
        with self.client.producer(self.topic(name)) as producer:
            for batch in batches:
                producer.send_batch(batch if isinstance(batch, pa.RecordBatch) else message_batch(batch)).result()

    def rows(self, name: str) -> pa.Table:
        """All rows of a topic's table, by offset."""
        table = self.tables.find(self.topic(name))
        assert table is not None, name
        rows = table.iceberg.scan().to_arrow()
        return rows.sort_by(str(rows.column_names[0]))

    def check(self, name: str, payloads: list[bytes] | None = None) -> None:
        """The table holds each message of the log exactly once, and its ledger says so."""
        log = self.client.read(self.topic(name))
        rows = self.rows(name)
        assert rows.column(0).to_pylist() == list(range(log.num_rows))
        assert rows.column("payload").to_pylist() == log.column("payload").to_pylist()
        if payloads is not None:
            assert rows.column("payload").to_pylist() == payloads
        table = self.tables.find(self.topic(name))
        assert table is not None
        assert table.ledger.committed_offset == log.num_rows

    def close(self) -> None:
        for runner in self._made:
            runner.close()
        self.tables.close()
        self.client.close()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Without a pipeline of its own. Topics of tests are apart by their namespace."""
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", arguments=["--no-pipeline"]) as process:
        yield process
        assert process.terminate() == 0, process.log()


@pytest.fixture
def pipelines(request: pytest.FixtureRequest, broker: BrokerProcess, spark: Spark) -> Iterator[Pipelines]:
    namespace = "".join(letter if letter.isalnum() else "_" for letter in request.node.name)[:100]
    made = Pipelines(broker.data_dir, broker.flight, namespace, spark)
    yield made
    made.close()


@pytest.fixture
def inline() -> InlineJobs:
    return InlineJobs()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """PySpark leaves the socket of each job's result to the garbage collector."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
