"""Readers while everything else goes on: publishing, commits, retention, compaction and expiry, all at once."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.reading import PATIENCE_SECONDS, TOPIC, Stage, pairs

from icestream.model.offsets import StartPosition
from icestream.storage import IcebergStorage

MESSAGES = 3_000
READERS = 6
STATELESS_READERS = 20


def payload(offset: int) -> bytes:
    return b"%d/" % offset + b"x" * (offset % 700)


def publish_all(stage: Stage) -> None:
    offset = 0
    while offset < MESSAGES:
        end = min(MESSAGES, offset + 1 + offset % 13)
        stage.publish([payload(number) for number in range(offset, end)])
        offset = end


def keep_house(stage: Stage, *, prune: bool = True) -> None:
    """Until everything is committed: commit, prune, and now and then compact and expire."""
    rounds = 0
    while True:
        table = stage.commit()
        if prune:
            stage.prune()
        rounds += 1
        if rounds % 3 == 0:
            stage.compact(0, 6)
        if rounds % 5 == 0:
            stage.expire()
        if table.ledger.committed_offset == MESSAGES:
            return


def read_all(open_reader: Callable[[], Any], max_bytes: int) -> int:
    """Read from offset 0 to the end of it all, and check each message; how many steps it took."""
    reader = open_reader()
    expected = steps = 0
    try:
        while expected < MESSAGES:
            batches = reader.read(max_bytes)
            if not batches:
                assert reader.wait(PATIENCE_SECONDS)
            for batch in batches:
                rows = pairs(batch)
                assert rows == [(offset, payload(offset)) for offset in range(expected, expected + len(rows))]
                expected += len(rows)
            steps += 1
    finally:
        reader.close()
    return steps


@pytest.mark.parametrize("cache_bytes", [1, 1 << 24], ids=["files", "cache"])
def test_readers_get_everything_once_and_in_order(tmp_path: Path, cache_bytes: int) -> None:
    stage = Stage(tmp_path, wal={"cache_max_bytes": cache_bytes})
    with ThreadPoolExecutor(READERS + 2) as pool:
        writing = pool.submit(publish_all, stage)
        housekeeping = pool.submit(keep_house, stage)
        reading = [pool.submit(read_all, stage.reader, 1 << (4 * number)) for number in range(READERS)]
        writing.result()
        housekeeping.result()
        late = pool.submit(read_all, stage.reader, 1 << 20)
        for one in (*reading, late):
            one.result()
    assert len(stage.topic.log.leases) == 0
    stage.prune()
    assert stage.topic.log.start_offset > MESSAGES - 50
    stage.close()


def test_many_readers_follow_one_table_with_no_broker(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.publish([payload(0)])
    with IcebergStorage.read_only(stage.settings) as tables:

        def open_reader() -> Any:
            return tables.reader(TOPIC, StartPosition.earliest())

        with ThreadPoolExecutor(STATELESS_READERS + 2) as pool:
            reading = [pool.submit(read_all, open_reader, 1 << 14) for _ in range(STATELESS_READERS)]
            stage.restart()  # they need no broker, and mind none
            writing = pool.submit(publish_from_one, stage)
            housekeeping = pool.submit(keep_house, stage)
            writing.result()
            housekeeping.result()
            for one in reading:
                one.result()
    stage.close()


def publish_from_one(stage: Stage) -> None:
    offset = 1
    while offset < MESSAGES:
        end = min(MESSAGES, offset + 100)
        stage.publish([payload(number) for number in range(offset, end)])
        offset = end


def test_a_reader_that_stands_still_slows_nobody_and_loses_nothing(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stuck = stage.reader(0)
    stage.publish([payload(0)])
    assert [pair for batch in stuck.read() for pair in pairs(batch)] == [(0, payload(0))]
    publish_from_one(stage)
    read_all(stage.reader, 1 << 20)
    stage.commit()
    assert stage.prune() > MESSAGES - 150
    expected = 1
    while batches := stuck.read():
        for batch in batches:
            rows = pairs(batch)
            assert rows == [(offset, payload(offset)) for offset in range(expected, expected + len(rows))]
            expected += len(rows)
    assert expected == MESSAGES
    stuck.close()
    stage.close()
    assert not [thread for thread in threading.enumerate() if "table" in thread.name]
