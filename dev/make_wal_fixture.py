"""Writes tests/fixtures/wal-1: a log in format 1. Run once per version of the format, then keep the bytes."""

import itertools
import shutil
from pathlib import Path
from uuid import UUID

from icestream.model.messages import check_and_encode, message_batch
from icestream.wal import LocalFiles, Log, LogContext, LogOptions, StreamInfo, prepare

FIXTURE = Path(__file__).parent.parent / "tests" / "fixtures" / "wal-1"


def main() -> None:
    shutil.rmtree(FIXTURE, ignore_errors=True)
    times = itertools.count(1_700_000_000_000_000, 1_000_000)
    options = LogOptions(max_file_bytes=4096, preallocate_bytes=0, index_interval_bytes=1024)
    context = LogContext(LocalFiles(), options=options, clock=lambda: next(times))
    log = Log.create(context, FIXTURE, StreamInfo("default/fixture", UUID(int=1), salt=7))
    for number in range(12):
        messages = [f"message {number}.{place}".encode() for place in range(1 + number % 3)]
        batch = message_batch(messages, [b"key"] * len(messages))
        encoding, body = check_and_encode(batch, batch.schema)
        sequence = sum(1 + earlier % 3 for earlier in range(number))
        log.append(prepare(body, message_count=len(messages), encoding=encoding, producer="fixture", sequence=sequence))
    log.close()


if __name__ == "__main__":
    main()
