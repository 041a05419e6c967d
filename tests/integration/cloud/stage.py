"""A storage whose topics are uploaded to a store in memory, which can fail and hang."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.memory_objects import MemoryObjects

from icestream.config import Settings
from icestream.model.messages import message_batch
from icestream.storage import IcebergStorage, Topic

PATIENCE_SECONDS = 30.0
NEVER = 86_400


class Stage:
    """A storage on a store in memory, which can be opened again on the same data."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.objects: dict[str, bytes] = {}
        self.store = MemoryObjects(self.objects)
        self._directory = directory
        monkeypatch.setattr("icestream.cloud.opendal_store.open_object_store", lambda *_: self.store)

    def settings(self, **uploader: Any) -> Settings:
        return Settings.model_validate(
            {
                "data_dir": self._directory,
                "wal": {"max_file_size": 65_536},
                "cloud": {"backend": "memory", "root": "test"},
                "uploader": {"enabled": True, "interval_seconds": NEVER, **uploader},
            }
        )

    @contextmanager
    def open(self, **uploader: Any) -> Iterator[IcebergStorage]:
        with IcebergStorage(self.settings(**uploader)) as storage:
            yield storage


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def publish(storage: IcebergStorage, topic: Topic, count: int = 10, nbytes: int = 100) -> None:
    storage.publish(topic, message_batch([b"x" * nbytes] * count))


def uploaded(topic: Topic) -> bool:
    assert topic.cloud is not None
    return topic.cloud.uploaded_end == topic.log.durable_end


def cloud_of(topic: Topic) -> Any:
    assert topic.cloud is not None
    return topic.cloud
