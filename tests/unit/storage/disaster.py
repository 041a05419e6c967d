"""Brokers on one object store in memory, and what a power cut leaves of them when a disk is lost with it."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.cloud_objects import FragileStore

from icestream.config import load_settings
from icestream.model.messages import message_batch
from icestream.storage import IcebergStorage, StartPosition

TOPIC = "default/events"
PATIENCE = 60.0


def storage(path: Path, **overrides: object) -> IcebergStorage:
    settings: dict[str, Any] = {
        "data_dir": path,
        "cloud.backend": "fs",
        "cloud.root": "/nowhere",
        "uploader.enabled": True,
        "uploader.interval_seconds": 3600,
    }
    return IcebergStorage(load_settings(overrides=settings | {k.replace("__", "."): v for k, v in overrides.items()}))


def publish(store: IcebergStorage, count: int, *, producer: str = "", sequence: int = 0, name: str = TOPIC) -> range:
    """So many messages in as many batches; the offsets they got."""
    topic = store.topic(name)
    first = -1
    for number in range(count):
        payload = b"%s %d" % (producer.encode(), sequence + number)
        append = store.publish(topic, message_batch([payload]), producer=producer, sequence=sequence + number)
        first = append.base_offset if first < 0 else first
    return range(first, first + count)


def rows(store: IcebergStorage, start: int = 0, name: str = TOPIC) -> dict[int, bytes]:
    topic = store.topic(name)
    batches = list(topic.read(topic.reader(StartPosition.offset(start))))
    table = pa.Table.from_batches(batches, topic.stream_schema)
    return dict(zip(table["offset"].to_pylist(), table["payload"].to_pylist(), strict=True))


def names(objects: FragileStore) -> list[str]:
    """The objects that hold messages, by offset."""
    return sorted(key for key in objects.objects if key.endswith(".frames"))


class Disaster:
    """What a power cut leaves of a broker whose log's disk is lost: the object store, and metadata if it is kept."""

    def __init__(self, path: Path, objects: FragileStore) -> None:
        self._path = path
        self._objects = objects

    def strike(self, store: IcebergStorage, *, keep_metadata: bool) -> None:
        copy = self._path / "metadata.copy"
        with closing(sqlite3.connect(self._path / "metadata.db")) as live, closing(sqlite3.connect(copy)) as kept:
            live.backup(kept)
        left = dict(self._objects.objects)
        store.close()
        shutil.rmtree(self._path / "wal")
        for file in self._path.glob("metadata.db*"):
            file.unlink()
        if keep_metadata:
            copy.rename(self._path / "metadata.db")
        else:
            copy.unlink()
        self._objects.objects = left
