"""Figures of a topic."""

from typing import NamedTuple

from icestream.model.clock import now_us
from icestream.model.errors import DamagedError, IcestreamError, LogLostError
from icestream.protocol.admin import TopicStats
from icestream.storage.cloud.uploads import age_seconds
from icestream.storage.housekeeping import seconds_ahead
from icestream.storage.topic import Topic
from icestream.wal import Log, LogState


def topic_stats(topic: Topic) -> TopicStats:
    """Return the figures of one topic. If its log cannot be opened, they hold the error."""
    name = str(topic.name)
    try:
        log = topic.log
    except DamagedError as error:
        return _unusable(topic, LogState.DAMAGED.value, error)
    except LogLostError as error:
        return _unusable(topic, "lost", error)
    except IcestreamError as error:
        return _unusable(topic, LogState.FAILED.value, error)
    snapshot = log.snapshot
    last_time_us = snapshot.active.last_time_us or (snapshot.sealed[-1].footer.last_time_us if snapshot.sealed else 0)
    return TopicStats(
        topic=name,
        state=log.state.value,
        message_count=snapshot.end_offset - snapshot.start_offset,
        bytes_stored=log.nbytes,
        start_offset=snapshot.start_offset,
        durable_end=snapshot.end_offset,
        segments=len(snapshot.sealed) + 1,
        cached_messages=log.cache.messages,
        cache_hits=log.cache.hits,
        cache_misses=log.cache.misses,
        last_publish_time_us=last_time_us or None,
        publish_time_ahead_seconds=seconds_ahead(log) or None,
        snapshot_id=topic.committed.snapshot_id,
        quarantined=topic.committed.quarantined,
        storage=topic.record.storage,
        format=topic.format,
        parquet_offset=topic.parquet_offset,
        parquet_lag_messages=(
            None if topic.parquet_offset is None else max(0, snapshot.end_offset - topic.parquet_offset)
        ),
        table_error=topic.table_error,
        error=log.taken_over,
        **table_figures(topic, log)._asdict(),
        **upload_figures(topic)._asdict(),
    )


def _unusable(topic: Topic, state: str, error: IcestreamError) -> TopicStats:
    nothing = (0,) * 8
    return TopicStats(str(topic.name), state, *nothing, None, storage=topic.record.storage, error=str(error))


class TableFigures(NamedTuple):
    committed_offset: int | None = None
    table_lag_messages: int | None = None
    table_lag_bytes: int | None = None
    table_lag_seconds: float | None = None


def table_figures(topic: Topic, log: Log) -> TableFigures:
    """Return how far the table is behind the log; nothing for a topic without a table.

    Until the catalog was read, all that the log keeps counts as lag: an alert on the lag must fire for a table that
    cannot be read, or was never written.
    """
    if not topic.record.has_table:
        return TableFigures()
    committed = topic.committed.offset
    end, start = log.durable_end, log.start_offset
    kept, first = end - start, start if committed is None else committed
    waiting = max(0, end - first)
    nbytes = log.nbytes * waiting // kept if kept else 0
    if not waiting:
        return TableFigures(committed, 0, 0, 0.0)
    age = _oldest_age_seconds(log) if committed is None else age_seconds(log, committed, now_us())
    return TableFigures(committed, waiting, nbytes, age)


class UploadFigures(NamedTuple):
    uploaded_offset: int | None = None
    upload_lag_messages: int | None = None
    upload_lag_bytes: int | None = None
    upload_lag_seconds: float | None = None
    cloud_objects: int | None = None
    cloud_bytes: int | None = None
    uploads: int | None = None
    uploaded_bytes: int | None = None
    upload_failures: int | None = None
    last_upload_us: int | None = None
    upload_state: str | None = None
    upload_error: str | None = None


def upload_figures(topic: Topic, *, ask: bool = True) -> UploadFigures:
    """Return what the cloud holds of a topic, and how far it is behind the log; nothing without an object store.

    A broker that does not upload has no lag and no uploads. It reads the rest from the metadata store the first time,
    unless the caller forbids that.
    """
    cloud = topic.cloud
    if cloud is None:
        return UploadFigures()
    try:
        status = cloud.status
        if status is None:
            if not ask and not cloud.objects.is_known:
                return UploadFigures()
            size = sum(span.size for span in cloud.objects.spans)
            return UploadFigures(cloud.uploaded_end, cloud_objects=len(cloud.objects.spans), cloud_bytes=size)
    except IcestreamError as error:
        return UploadFigures(upload_error=str(error))
    return UploadFigures(
        uploaded_offset=status.uploaded_end,
        upload_lag_messages=status.lag_messages,
        upload_lag_bytes=status.lag_bytes,
        upload_lag_seconds=status.lag_seconds,
        cloud_objects=status.objects,
        cloud_bytes=status.object_bytes,
        uploads=status.uploads,
        uploaded_bytes=status.uploaded_bytes,
        upload_failures=status.failures,
        last_upload_us=status.last_upload_us,
        upload_state=status.state,
        upload_error=status.last_error,
    )


def _oldest_age_seconds(log: Log) -> float | None:
    """Return the age of the log's oldest message, from the segments' footers; no frame is read."""
    snapshot = log.snapshot
    times = (*(segment.footer.first_time_us for segment in snapshot.sealed), snapshot.active.first_time_us)
    first_us = next((time_us for time_us in times if time_us), None)
    return None if first_us is None else max(0.0, (now_us() - first_us) / 1e6)
