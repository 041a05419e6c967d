"""A frame in quarantine of the one table is in quarantine of the other too, also when that is filled from the first."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.plain_files import COPY, NAME, Place
from tests.reading import TOPIC
from tests.unit.table.conftest import local

from icestream.model.enums import StorageFormat
from icestream.model.messages import Encoding
from icestream.pipeline.sources import backfill_before_log
from icestream.table.quarantine import mark_retried, read_frame, read_record, read_retried
from icestream.wal import prepare

QUICK = {"retry_interval_ms": 1, "max_retry_interval_ms": 5, "quarantine_after": 2}
COUNT = 3


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.stop()


def put_one_aside(place: Place, storage_format: str) -> int:
    """Write a topic in which one frame is no Arrow, until the log does not have it any more; its offset."""
    place.start(storage_format)
    place.publish(5)
    payload = prepare(b"no Arrow at all", message_count=COUNT, encoding=Encoding.ARROW_IPC)
    offset = place.running.storage.topic(TOPIC).log.append(payload).base_offset
    place.published += COUNT
    place.publish(30)
    place.runner(pipeline=QUICK).drain(threading.Event())
    assert place.prune() > offset + COUNT
    return offset


@pytest.mark.parametrize(("first", "filled"), [("parquet", NAME), ("iceberg", COPY)])
def test_a_table_that_is_filled_takes_the_frame_over(place: Place, first: str, filled: object) -> None:
    offset = put_one_aside(place, first)
    (source, target) = (COPY, NAME) if filled == NAME else (NAME, COPY)
    (entry,) = place.table(source).quarantined
    mark_retried(place.table(source), entry, {"first_offset": 7})
    place.start("both")
    place.drain(place.runner(pipeline=QUICK))
    kept, table = place.table(source), place.table(target)
    assert table.ledger.committed_offset == place.published
    (copied,) = table.quarantined
    assert (copied.first_offset, copied.end_offset) == (offset, offset + COUNT)
    assert copied.reason == entry.reason
    assert copied.quarantined_us == entry.quarantined_us
    assert copied.file.startswith(table.location)
    assert read_frame(table, copied) == read_frame(kept, entry)
    assert read_record(table, copied) == read_record(kept, entry)
    assert read_retried(table, copied) == read_retried(kept, entry)
    report = place.verify()
    assert len(report.quarantined) == len(StorageFormat.BOTH.fed(NAME))
    place.tables().drop(source, kept.ledger.stream_id)
    assert read_frame(table, copied).end_offset == offset + COUNT


def test_ranges_that_end_in_the_middle_of_the_frame(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    offset = put_one_aside(place, "parquet")
    monkeypatch.setattr(
        "icestream.pipeline.one_pass.backfill_before_log",
        lambda log, start, _end: backfill_before_log(log, start, start + offset + 1),
    )
    place.start("both")
    runner = place.runner(pipeline=QUICK)
    runner.topics.refresh_all()
    runner.passes.run()
    assert place.committed(NAME) == offset + 1
    assert place.table(NAME).quarantined == ()
    place.drain(runner)
    (copied,) = place.table(NAME).quarantined
    assert (copied.first_offset, copied.end_offset) == (offset, offset + COUNT)
    place.verify()


def test_a_frame_that_is_lost_does_not_stop_the_filling(place: Place) -> None:
    put_one_aside(place, "parquet")
    (entry,) = place.table(COPY).quarantined
    local(entry.file).unlink()
    place.start("both")
    place.drain(place.runner(pipeline=QUICK))
    assert place.committed(NAME) == place.published
    assert place.table(NAME).quarantined == ()
