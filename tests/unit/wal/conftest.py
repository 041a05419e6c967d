"""What the tests of the log share: a log in a temporary directory and batches to put in it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest

from icestream.model.messages import Encoding
from icestream.wal import LocalFiles, Log, LogContext, LogOptions, LogReader, Payload, StreamInfo, prepare

STREAM = StreamInfo("default/events", UUID(int=7))


def batch(text: str, *, count: int = 1, producer: str = "", sequence: int = 0) -> Payload:
    """A batch whose body is plain text: the log does not look into bodies."""
    return prepare(
        text.encode(), message_count=count, encoding=Encoding.ARROW_IPC, producer=producer, sequence=sequence
    )


def bodies(log: Log, offset: int = 0) -> list[str]:
    reader = LogReader(log, offset)
    found = []
    while frames := reader.read():
        found += [bytes(frame.body).decode() for frame in frames]
    reader.close()
    return found


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "wal" / "default" / "events"


@pytest.fixture
def open_log(directory: Path) -> Iterator[Callable[..., Log]]:
    """Opens (or makes) the log; options are those of `LogOptions`. All are closed at the end."""
    logs: list[Log] = []

    def open_(**options: object) -> Log:
        context = LogContext(LocalFiles(), options=LogOptions(**options))  # type: ignore[arg-type]
        log = Log.create(context, directory, STREAM)
        logs.append(log)
        return log

    yield open_
    for log in logs:
        log.close()
