"""Figures of a topic."""

from dataclasses import dataclass

from icestream.model.errors import DamagedError, IcestreamError
from icestream.storage.topic import Topic
from icestream.wal import LogState


@dataclass(frozen=True)
class TopicStats:
    topic: str
    state: str
    message_count: int
    bytes_stored: int
    start_offset: int
    durable_end: int
    segments: int
    cached_messages: int
    cache_hits: int
    cache_misses: int
    last_publish_time_us: int | None
    error: str | None = None
    """Why the log cannot be used, if it cannot; the figures are then 0."""


def topic_stats(topic: Topic) -> TopicStats:
    """Figures of one topic; a log that cannot be opened says so in them, and keeps nobody from the other topics'."""
    name = str(topic.name)
    try:
        log = topic.log
    except DamagedError as error:
        return TopicStats(name, LogState.DAMAGED.value, 0, 0, 0, 0, 0, 0, 0, 0, None, str(error))
    except IcestreamError as error:
        return TopicStats(name, LogState.FAILED.value, 0, 0, 0, 0, 0, 0, 0, 0, None, str(error))
    visible = log.visible
    last_time_us = visible.active.last_time_us or (visible.sealed[-1].footer.last_time_us if visible.sealed else 0)
    return TopicStats(
        topic=name,
        state=log.state.value,
        message_count=visible.end_offset - visible.start_offset,
        bytes_stored=log.nbytes,
        start_offset=visible.start_offset,
        durable_end=visible.end_offset,
        segments=len(visible.sealed) + 1,
        cached_messages=log.cache.messages,
        cache_hits=log.cache.hits,
        cache_misses=log.cache.misses,
        last_publish_time_us=last_time_us or None,
    )
