"""Which local segments may go: those that the table is known to have, and that age or size makes superfluous."""

import structlog

from icestream.config import RetentionSettings
from icestream.model.errors import IcestreamError
from icestream.storage.topic import Topic
from icestream.wal import Log, LogState

_MINUTE_US = 60_000_000
_MB = 1_000_000
_log = structlog.get_logger(__name__)


def prune_logs(topics: list[Topic], settings: RetentionSettings, now_us: int) -> int:
    """One round over the open logs; how many segments went. A topic's own retention wins over the settings."""
    removed = 0
    for topic in topics:
        log = topic.opened_log
        if log is None or log.state is not LogState.OPEN:
            continue
        record = topic.record
        below = prunable_below(
            log,
            committed=topic.committed.offset or 0,
            minutes=record.retention_minutes or settings.time_minutes,
            megabytes=record.retention_mb or settings.size_mb,
            now_us=now_us,
        )
        if below <= log.start_offset:
            continue
        try:
            count = log.prune(below)
        except IcestreamError as error:
            _log.warning("retention failed", topic=record.topic, error=str(error))
            continue
        removed += count
        _log.info("segments removed", topic=record.topic, segments=count, start_offset=log.start_offset)
    return removed


def prunable_below(log: Log, *, committed: int, minutes: int | None, megabytes: int | None, now_us: int) -> int:
    """The offset below which sealed segments may go."""
    visible = log.visible
    nbytes = log.nbytes
    below = visible.start_offset
    for segment in visible.sealed:
        footer = segment.footer
        too_old = minutes is not None and footer.last_time_us < now_us - minutes * _MINUTE_US
        too_much = megabytes is not None and nbytes > megabytes * _MB
        if footer.end_offset > committed or not (too_old or too_much):
            break
        below = footer.end_offset
        nbytes -= footer.position
    return below
