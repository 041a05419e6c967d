"""Frames that nobody can write, on real Spark: one takes down every worker that touches it, one cannot be opened.

The driver is killed in between, when a frame is in its file and not yet in the ledger, and the next one has to find out
everything anew.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fault.pipeline.conftest import MakeSite, environ
from tests.fault.pipeline.harness import Site, wait_for
from tests.fault.pipeline.oracle import rows_of

from icestream.broker_process import BrokerProcess
from icestream.config import Settings
from icestream.model.messages import Encoding
from icestream.model.names import TopicName
from icestream.storage import IcebergStorage
from icestream.storage.verify import BrokerLogs, verify_topic
from icestream.table.quarantine import read_frame
from icestream.wal import prepare

GARBAGE = b"not a batch of messages"
DEADLY_OFFSET = 33


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", environ=environ({"reader": {"poll_interval_ms": 100}})) as process:
        yield process


def append(broker: BrokerProcess, topic: TopicName, body: bytes) -> None:
    """A frame as no door takes it, while the broker is down."""
    assert broker.terminate() == 0, broker.log()
    with IcebergStorage(Settings(data_dir=broker.data_dir)) as storage:
        log = storage.topic(topic).log
        log.append(prepare(body, message_count=2, encoding=Encoding.ARROW_IPC))
    broker.start()


def check(site: Site, name: str, aside: tuple[int, int], end: int) -> bytes:
    """Everything but the frame is in the table, the frame is whole in its file, and all of it is as it should be."""
    table = site.tables.find(site.topic(name))
    assert table is not None
    rows = rows_of(table).column("offset").to_pylist()
    assert rows == [*range(aside[0]), *range(aside[1], end)]
    (entry,) = table.quarantined
    assert (entry.first_offset, entry.end_offset) == aside
    report = verify_topic(site.topic(name), BrokerLogs(site.client).view, site.tables)
    assert report.is_sound, report.findings
    assert report.quarantined == [entry]
    return bytes(read_frame(table, entry).body)


def test_poisonous_frames_are_quarantined_and_everything_else_goes_on(
    make_site: MakeSite, own_broker: BrokerProcess, tmp_path: Path
) -> None:
    site = make_site(own_broker)
    for _ in range(8):
        site.publish("deadly", 6)
    site.publish("unreadable", 5)
    append(own_broker, site.topic("unreadable"), GARBAGE)
    site.publish("unreadable", 5, producer="second")
    site.publish("good", 10)
    killed = tmp_path / "killed"
    with site.process(
        crash_at=f"offset-{DEADLY_OFFSET},after-quarantine-file@{killed}",
        pipeline={"quarantine_after": 2},
        writer={"flush_interval_ms": 20},
    ) as pipeline:
        wait_for("the good topic", lambda: site.committed("good") == 10)
        wait_for("the kill", killed.exists)
        wait_for("the frame that cannot be opened", lambda: site.committed("unreadable") == 12)
        wait_for("the frame that kills", lambda: site.committed("deadly") == 48)
        site.publish("deadly", 4)
        wait_for("what comes after it", lambda: site.committed("deadly") == 52)
        assert pipeline.state.starts == 2
    assert check(site, "unreadable", (5, 7), 12) == GARBAGE
    check(site, "deadly", (30, 36), 52)
    site.check("good")
