"""Figures of a topic."""

from dataclasses import dataclass

from icestream.storage.topic import Topic


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


def topic_stats(topic: Topic) -> TopicStats:
    log = topic.log
    visible = log.visible
    last_time_us = visible.active.last_time_us or (visible.sealed[-1].footer.last_time_us if visible.sealed else 0)
    return TopicStats(
        topic=str(topic.name),
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
