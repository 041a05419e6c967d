"""A topic in all its tiers: published to a real storage, committed, pruned, compacted and expired by hand, no Spark."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from icestream.config import Settings
from icestream.model.messages import message_batch
from icestream.model.offsets import StartPosition
from icestream.reader import TopicReader
from icestream.storage import IcebergStorage, Topic
from icestream.storage.retention import prune_logs
from icestream.table import Tables, TableSpec, TopicTable

TOPIC = "default/events"
MEMORY_BYTES = 1 << 24
PATIENCE_SECONDS = 60.0
FAR_US = 1 << 62


def reading_settings(path: Path, **sections: Any) -> Settings:
    """Segments of a few messages, and whatever the table has may go from the log: retention at its most aggressive."""
    given: dict[str, dict[str, Any]] = {
        "wal": {"max_file_size": 4096, "retention": {"time_minutes": 1}},
        "reader": {"poll_interval_ms": 5, "lease_timeout_ms": 0},
        "table": {"unused_file_grace_seconds": 0},
    }
    merged = {name: {**given.get(name, {}), **sections.get(name, {})} for name in {*given, *sections}}
    return Settings.model_validate({"data_dir": path, **merged})


class Stage:
    """One topic's storage, and a second view of its catalog, as the pipeline has one."""

    def __init__(self, path: Path, *, schema: pa.Schema | None = None, **sections: Any) -> None:
        self.settings = reading_settings(path, **sections)
        self.storage = IcebergStorage(self.settings).open()
        self.storage.topics.create(TOPIC, schema=schema, if_not_exists=True)
        self.tables = Tables(self.settings)

    @property
    def topic(self) -> Topic:
        return self.storage.topic(TOPIC)

    def restart(self) -> None:
        self.storage.close()
        self.storage = IcebergStorage(self.settings).open()

    def close(self) -> None:
        self.tables.close()
        self.storage.close()

    def publish(self, payloads: Sequence[bytes]) -> None:
        self.storage.publish(self.topic, message_batch(payloads, keys=[payload[-1:] for payload in payloads]))

    def table(self) -> TopicTable:
        topic = self.topic
        return self.tables.open(TableSpec(topic.name, topic.record.stream_id, topic.record.epoch, topic.stream_schema))

    def commit(self, end: int | None = None) -> TopicTable:
        """Put what is published, below `end`, into the table, and have the storage know of it."""
        topic, table = self.topic, self.table()
        start = table.ledger.committed_offset
        end = topic.log.durable_end if end is None else end
        if end > start:
            batches = topic.read(topic.reader(StartPosition.offset(start)), end=end)
            files = table.writer().write(batches, max_memory_bytes=MEMORY_BYTES)
            table = table.commit(files, start=start, end=end, epoch=topic.record.epoch)
        self.storage.table_watch.hint(topic.name)
        assert self.storage.table_watch.wait(topic, end, PATIENCE_SECONDS)
        return table

    def prune(self) -> int:
        """Retention, long after everything was published; the first offset that the log still has."""
        prune_logs([self.topic], self.settings.wal.retention, FAR_US)
        return self.topic.log.start_offset

    def compact(self, first: int = 0, last: int | None = None) -> TopicTable:
        """The same rows of some files, counted in offset order, in one file: a snapshot that appends nothing."""
        table = self.table()
        old = sorted((task.file for task in table.iceberg.scan().plan_files()), key=lambda file: file.file_path)
        offset = table.iceberg.schema().find_field(table.stream_schema.names[0]).field_id
        old.sort(key=lambda file: file.lower_bounds[offset][::-1])
        chosen = old[first:last]
        if not chosen:
            return table
        start = int.from_bytes(chosen[0].lower_bounds[offset], "little")
        end = int.from_bytes(chosen[-1].upper_bounds[offset], "little") + 1
        written = table.writer().write(table.scan(start, end), max_memory_bytes=MEMORY_BYTES)
        with table.iceberg.transaction() as change, change.update_snapshot().overwrite() as rewriting:
            for file in chosen:
                rewriting.delete_data_file(file)
            for added in written:
                rewriting.append_data_file(added.data_file)
        return table.refresh()

    def expire(self) -> TopicTable:
        """All snapshots but the newest, and at once every file that it does not name."""
        table = self.table().iceberg
        old = [snapshot.snapshot_id for snapshot in table.snapshots()][:-1]
        if old:
            table.maintenance.expire_snapshots().by_ids(old).commit()
        table = table.refresh()
        snapshot = table.current_snapshot()
        if snapshot is not None:
            manifests = snapshot.manifests(table.io)
            kept = {entry.data_file.file_path for one in manifests for entry in one.fetch_manifest_entry(table.io)}
            kept |= {snapshot.manifest_list, table.metadata_location, *(one.manifest_path for one in manifests)}
            folder = Path(table.location().removeprefix("file://"))
            for path in folder.rglob("*"):
                if path.is_file() and f"file://{path}" not in kept:
                    path.unlink()
        return self.table()

    def reader(self, start: int | str = 0, **options: Any) -> TopicReader:
        return self.topic.reader(StartPosition.parse(str(start)), **options)


def rest_of(reader: Any, max_bytes: int = 1 << 20) -> list[tuple[int, bytes]]:
    """Offsets and payloads of everything that a reader has to give now."""
    found: list[tuple[int, bytes]] = []
    while batches := reader.read(max_bytes):
        for batch in batches:
            assert batch.schema.equals(reader.schema)
            found += pairs(batch)
    return found


def pairs(batch: pa.RecordBatch) -> list[tuple[int, bytes]]:
    return list(zip(batch.column(0).to_pylist(), batch.column("payload").to_pylist(), strict=True))
