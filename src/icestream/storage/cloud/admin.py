"""What operators ask of a topic's part in the cloud: upload now, list objects, list what can be recovered."""

from dataclasses import asdict

import msgspec

from icestream.cloud import ObjectDescriptor
from icestream.model.errors import DeadlineError, InvalidRequestError
from icestream.model.names import TopicName
from icestream.protocol.admin import (
    CloudHead,
    CloudObject,
    CloudObjectPage,
    FlushProgress,
    RecoverableTopics,
    RecoveredTopic,
)
from icestream.storage.cloud.topic_cloud import TopicCloud
from icestream.storage.facade import IcebergStorage
from icestream.storage.topic import Topic


def flush_topic(storage: IcebergStorage, name: TopicName, wait_seconds: float, target: int | None) -> FlushProgress:
    """Upload what is durable, and wait for it; a caller that is not done asks again for the same target."""
    topic = storage.topic(name)
    cloud = cloud_of(topic, "flush topic")
    if not cloud.uploads:
        raise InvalidRequestError(
            "this broker uploads nothing",
            operation="flush topic",
            place=str(name),
            remedy="set uploader.enabled and cloud.backend, and start the broker again",
        )
    durable_end = topic.log.durable_end
    wanted = durable_end if target is None else target
    if wanted > durable_end:
        raise InvalidRequestError(
            f"the target {wanted} is past the durable end {durable_end}",
            operation="flush topic",
            place=str(name),
            remedy="leave it out, or give the target of an earlier response",
        )
    uploaded = cloud.uploaded_end
    if uploaded < wanted and wait_seconds > 0:
        try:
            uploaded = cloud.flush(wait_seconds)
        except DeadlineError:
            uploaded = cloud.uploaded_end
    return FlushProgress(str(name), wanted, uploaded, uploaded >= wanted)


def recover_topic(storage: IcebergStorage, name: TopicName) -> RecoveredTopic:
    """Recover a topic from the cloud and its table; return what came from where, and what is lost."""
    return msgspec.convert(storage.recover_topic(name).to_json(), RecoveredTopic)


def recoverable_topics(storage: IcebergStorage) -> RecoverableTopics:
    """Return the topics whose log is lost, and those that the object store has and this broker does not know."""
    return RecoverableTopics(
        lost=sorted(map(str, storage.topics.lost())), recoverable=sorted(map(str, storage.topics.recoverable()))
    )


def cloud_objects(storage: IcebergStorage, name: TopicName, after: int, limit: int) -> CloudObjectPage:
    """Return a page of a topic's objects by offset, and how far the topic is."""
    cloud = cloud_of(storage.topic(name), "list cloud objects")
    head = cloud.registry.head()
    found = cloud.registry.page(after, limit + 1)
    page = found[:limit]
    return CloudObjectPage(
        topic=str(name),
        store=cloud.store.name,
        head=msgspec.convert(asdict(head), CloudHead) if head is not None else None,
        objects=[object_fields(one) for one in page],
        next_after=page[-1].first_offset if len(found) > len(page) else None,
    )


def object_fields(descriptor: ObjectDescriptor) -> CloudObject:
    """Return what a list shows of an object."""
    fields = asdict(descriptor) | {"parts": len(descriptor.parts), "checksum": f"{descriptor.checksum:016x}"}
    return msgspec.convert(fields, CloudObject)


def cloud_of(topic: Topic, operation: str) -> TopicCloud:
    """Return the topic's part in the cloud; raise if the broker has no object store."""
    if topic.cloud is None:
        raise InvalidRequestError(
            "this broker has no object store",
            operation=operation,
            place=str(topic.name),
            remedy="set cloud.backend, cloud.root and uploader.enabled, and start the broker again",
        )
    return topic.cloud
