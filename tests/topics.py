"""Topics of a real broker and their tables: the pipeline's passes are run in the test's process, without Spark."""

import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from icestream.broker_process import BrokerProcess
from icestream.client import Client
from icestream.config import Settings
from icestream.model.messages import message_batch
from icestream.model.names import TopicName
from icestream.pipeline.driver import Runner
from icestream.pipeline.tasks import Written, write_parcels
from icestream.storage.verify import BrokerLogs, Verification, verify_topic
from icestream.table import Tables, TopicTable


class InlineJobs:
    """Runs tasks where it is called."""

    parallelism = 1

    def run(self, parcels: Sequence[bytes], /) -> list[Written]:
        return list(write_parcels(parcels))


class Topics:
    def __init__(self, broker: BrokerProcess, environ: Mapping[str, str]) -> None:
        self.broker = broker
        self._catalog = {"name": environ["ICESTREAM_CATALOG__NAME"]}
        self.settings = self.settings_with()
        self.client = Client(broker.flight)
        self.tables = Tables(self.settings)

    def settings_with(self, **sections: dict[str, Any]) -> Settings:
        """The same catalog, with these settings besides."""
        return Settings.model_validate({"data_dir": self.broker.data_dir, "catalog": self._catalog, **sections})

    def create(self, name: str, schema: pa.Schema | None = None, **options: Any) -> TopicName:
        topic = TopicName.parse(name)
        self.client.create_topic(topic, schema, **options)
        return topic

    def publish(self, topic: TopicName, batch: pa.RecordBatch | Sequence[bytes]) -> None:
        with self.client.producer(topic) as producer:
            rows = batch if isinstance(batch, pa.RecordBatch) else message_batch(batch)
            producer.send_batch(rows).result()

    def drain(self, topic: TopicName) -> TopicTable:
        """Write all that is published to the table, as one commit."""
        settings = self.settings.model_copy(
            update={"pipeline": self.settings.pipeline.model_copy(update={"topics": str(topic)})}
        )
        with Runner(settings, self.client, self.tables, InlineJobs()) as runner:
            figures = runner.drain(threading.Event())
        errors = [found.error for found in figures.topics.values() if found.error]
        assert not errors, errors
        return self.table(topic)

    def fill(self, topic: TopicName, commits: int, messages: int = 10) -> TopicTable:
        """So many commits of so many messages each."""
        for number in range(commits):
            self.publish(topic, [b"%s %d.%d" % (topic.name.encode(), number, place) for place in range(messages)])
            self.drain(topic)
        return self.table(topic)

    def table(self, topic: TopicName) -> TopicTable:
        found = self.tables.find(topic)
        assert found is not None
        return found

    def verify(self, topic: TopicName) -> Verification:
        return verify_topic(topic, BrokerLogs(self.client).view, self.tables)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.tables.close()
        self.client.close()
