"""Names of objects.

    {root_prefix}/{namespace}/{topic}/{stream id}/{first offset}-{end offset}-{epoch}.frames
    {root_prefix}/{namespace}/{topic}/{stream id}/topic.json        the topic's record and its reservation

The prefix is the store's own matter; names here begin behind it. Leading zeros make the order of names that of offsets.
"""

import re
from typing import NamedTuple, Self

from icestream.model.names import TopicName

SUFFIX = ".frames"
TOPIC_FILE = "topic.json"
_DIGITS = 19  # the largest 64-bit offset
_PATTERN = re.compile(r"(?:.*/)?(\d{19})-(\d{19})-(\d+)\.frames")


class ObjectName(NamedTuple):
    first_offset: int
    end_offset: int
    epoch: int

    @classmethod
    def parse(cls, key: str) -> Self | None:
        """What an object's name says, or None if it is not one of ours."""
        match = _PATTERN.fullmatch(key)
        return cls(*map(int, match.groups())) if match else None


def topic_prefix(topic: TopicName) -> str:
    """Of everything of a topic, whatever stream."""
    return f"{topic.namespace}/{topic.name}/"


def stream_prefix(topic: TopicName, stream_id: str) -> str:
    return f"{topic_prefix(topic)}{stream_id}/"


def object_key(topic: TopicName, stream_id: str, name: ObjectName) -> str:
    first, end, epoch = name
    return f"{stream_prefix(topic, stream_id)}{first:0{_DIGITS}d}-{end:0{_DIGITS}d}-{epoch}{SUFFIX}"


def topic_key(topic: TopicName, stream_id: str) -> str:
    return stream_prefix(topic, stream_id) + TOPIC_FILE
