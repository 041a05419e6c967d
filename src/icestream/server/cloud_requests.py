"""What every door asks of a topic's part in the cloud: ship it now, bring it back, list its objects."""

from dataclasses import asdict
from typing import Any, NamedTuple

from icestream.cloud import ObjectDescriptor
from icestream.model.errors import DeadlineError, InvalidRequestError
from icestream.model.names import TopicName
from icestream.storage import IcebergStorage, Topic
from icestream.storage.cloud import TopicCloud

MAX_OBJECTS = 1_000
"""In one answer."""
MAX_WAIT_SECONDS = 10.0


class Flushed(NamedTuple):
    topic: str
    target: int
    """Everything below it is to be in the cloud: what was durable when the first request came."""
    uploaded_offset: int
    done: bool


def flush_topic(storage: IcebergStorage, name: TopicName, wait_seconds: float, target: int | None) -> Flushed:
    """Ship what is durable, and wait for it for some seconds; who is not done asks again for the same target."""
    topic = storage.topic(name)
    cloud = cloud_of(topic, "flush topic")
    if not cloud.uploads:
        raise InvalidRequestError(
            "this broker uploads nothing",
            operation="flush topic",
            place=str(name),
            remedy="set uploader.enabled beside cloud.backend and start the broker again",
        )
    durable_end = topic.log.durable_end
    wanted = durable_end if target is None else target
    if wanted > durable_end:
        raise InvalidRequestError(
            f"the target {wanted} lies past what is durable, which ends at {durable_end}",
            operation="flush topic",
            place=str(name),
            remedy="leave it out, or give that of an earlier answer",
        )
    uploaded = cloud.uploaded_end
    if uploaded < wanted and wait_seconds > 0:
        try:
            uploaded = cloud.flush(wait_seconds)
        except DeadlineError:
            uploaded = cloud.uploaded_end
    return Flushed(str(name), wanted, uploaded, uploaded >= wanted)


def recover_topic(storage: IcebergStorage, name: TopicName) -> dict[str, Any]:
    """Make a topic live again from the cloud and its table; what came from where, and what was lost."""
    return storage.recover_topic(name).to_json()


def recoverable_topics(storage: IcebergStorage) -> dict[str, list[str]]:
    """Topics whose log is lost, and topics that the object store has and this broker does not know."""
    return {
        "lost": sorted(map(str, storage.topics.lost())),
        "recoverable": sorted(map(str, storage.topics.recoverable())),
    }


def cloud_objects(storage: IcebergStorage, name: TopicName, after: int, limit: int) -> dict[str, Any]:
    """A page of a topic's objects by offset, and how far the topic is."""
    cloud = cloud_of(storage.topic(name), "list cloud objects")
    head = cloud.registry.head()
    found = cloud.registry.page(after, limit + 1)
    page = found[:limit]
    return {
        "topic": str(name),
        "store": cloud.store.name,
        "head": asdict(head) if head is not None else None,
        "objects": [object_fields(one) for one in page],
        "next_after": page[-1].first_offset if len(found) > len(page) else None,
    }


def object_fields(descriptor: ObjectDescriptor) -> dict[str, Any]:
    """What a list says of an object."""
    fields = asdict(descriptor)
    del fields["index"], fields["topic"]
    fields["parts"] = len(descriptor.parts)
    fields["checksum"] = f"{descriptor.checksum:016x}"
    return fields


def cloud_of(topic: Topic, operation: str) -> TopicCloud:
    """The topic's part in the cloud; raises where the broker has no object store."""
    if topic.cloud is None:
        raise InvalidRequestError(
            "this broker has no object store",
            operation=operation,
            place=str(topic.name),
            remedy="set cloud.backend, cloud.root and uploader.enabled, and start the broker again",
        )
    return topic.cloud
