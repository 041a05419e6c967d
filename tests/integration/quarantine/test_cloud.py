"""A frame that cannot be opened, in cloud objects: found there, put aside from there, and known to `verify`."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.cloud.brokers import Site

from icestream.model.messages import Encoding
from icestream.model.names import TopicName
from icestream.storage import IcebergStorage
from icestream.storage.verify import Clouds, verify_topic
from icestream.table.quarantine import read_frame
from icestream.wal import prepare

TOPIC = TopicName("default", "events")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    made.broker.start()
    yield made
    made.close()


def test_it_is_quarantined_from_the_cloud_while_the_broker_is_away(site: Site) -> None:
    site.publish(str(TOPIC), [b"a", b"b"])
    assert site.broker.terminate() == 0
    with IcebergStorage(site.settings()) as storage:
        storage.topic(TOPIC).log.append(prepare(b"garbage", message_count=2, encoding=Encoding.ARROW_IPC))
    site.broker.start()
    site.publish(str(TOPIC), [b"c", b"d"], flush=True)
    site.broker.kill()
    figures = site.drain(pipeline={"quarantine_after": 2, "retry_interval_ms": 1}).topics[TOPIC]
    assert (figures.error, figures.quarantined, figures.committed_offset) == (None, 1, 6)
    assert site.rows(str(TOPIC)).column("offset").to_pylist() == [0, 1, 4, 5]
    table = site.table(str(TOPIC))
    (entry,) = table.quarantined
    assert bytes(read_frame(table, entry).body) == b"garbage"
    with Clouds(site.settings()) as clouds:
        report = verify_topic(TOPIC, lambda _topic: None, site.tables, find_cloud=clouds.find)
    assert report.is_sound, report.findings
    assert (report.quarantined, report.compared, report.lost) == ([entry], 4, 0)
