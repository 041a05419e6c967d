"""Topics in the cloud: connects `icestream.cloud` with the logs and the metadata store.

What it guarantees: only the owner of a topic, by its epoch, describes objects; objects follow on each other without a
gap; offsets are reserved in the metadata store before messages get them, so that a recovery never reuses one.

`topic_cloud` has a topic's objects, and what all topics share. `registry` has the records in the metadata store.
`uploads` decides which topic uploads next, in its threads. `reservation` reserves offsets. `log_source` shows a log to
`icestream.cloud.uploader`. `retention` deletes objects. `discovery` lists what the store holds without other records.
`recovery` brings a topic back whose log is lost.
"""

from icestream.storage.cloud.discovery import (
    FoundObject,
    FoundStream,
    TopicFile,
    describe,
    find_streams,
    find_trailer,
    in_order,
    record_of,
)
from icestream.storage.cloud.registry import MetadataRegistry
from icestream.storage.cloud.topic_cloud import Cloud, TopicCloud

__all__ = [
    "Cloud",
    "FoundObject",
    "FoundStream",
    "MetadataRegistry",
    "TopicCloud",
    "TopicFile",
    "describe",
    "find_streams",
    "find_trailer",
    "in_order",
    "record_of",
]
