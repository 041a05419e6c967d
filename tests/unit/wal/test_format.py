"""The bytes on disk are a promise: what an earlier version wrote is read by every later one."""

import shutil
from pathlib import Path

import pyarrow as pa

from icestream.model.messages import MESSAGE_SCHEMA, stream_batches
from icestream.wal import LocalFiles, Log, LogContext, LogReader
from icestream.wal.inspect import inspect_directory

FIXTURE = Path(__file__).parents[2] / "fixtures" / "wal-1"


def read_all(log: Log) -> pa.Table:
    reader = LogReader(log, 0)
    batches: list[pa.RecordBatch] = []
    while frames := reader.read():
        batches += stream_batches(frames, {0: MESSAGE_SCHEMA})
    return pa.Table.from_batches(batches)


def test_a_log_of_format_1_is_read_as_it_was_written(tmp_path: Path) -> None:
    directory = tmp_path / "log"
    shutil.copytree(FIXTURE, directory)
    log = Log.open(LogContext(LocalFiles()), directory)
    table = read_all(log)
    expected = [f"message {n}.{place}".encode() for n in range(12) for place in range(1 + n % 3)]
    assert table["payload"].to_pylist() == expected
    assert table["offset"].to_pylist() == table["sequence"].to_pylist() == list(range(24))
    assert set(table["producer"].to_pylist()) == {"fixture"}
    assert set(table["key"].to_pylist()) == {b"key"}
    assert len(log.snapshot.sealed) == 1
    assert log.next_sequence("fixture") == 24
    log.close()


def test_a_log_of_format_1_is_sound_in_every_byte() -> None:
    report = inspect_directory(LocalFiles(), FIXTURE)
    assert report.problems == []
    assert (report.topic, report.start_offset, report.end_offset) == ("default/fixture", 0, 24)
