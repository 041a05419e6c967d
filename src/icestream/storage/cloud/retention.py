"""Deleting cloud objects, and checking that objects are complete.

Objects go whole and oldest first. Those of a topic with a table go once the table has them and `cloud.retention` is
over, those of a topic without one by the topic's own retention. The newest object of a topic always stays: it says how
far uploads have come, and has what recovery needs to know of producers.

The order of a removal, with what a crash after each step leaves behind:

1. take the objects out of the map, under the lock of the readers' leases. *Nothing: the map is memory.*
2. take them off the record, and move the head, in one transaction. *Objects that nobody knows of.*
3. delete them. What a crash or the store has left is found by its name, now and then, and deleted then.
"""

from collections.abc import Sequence
from dataclasses import replace

import structlog

from icestream.cloud import (
    FOOTER_BYTES,
    ObjectDescriptor,
    ObjectInfo,
    ObjectName,
    ObjectSpan,
    footer_data_bytes,
    stream_prefix,
)
from icestream.model.units import MIB
from icestream.storage.cloud.topic_cloud import TopicCloud

MAX_REMOVED = 1_000
"""How many objects of one topic a round removes at most."""
_TRANSACTION_OBJECTS = 50
"""How many operations fit into one transaction of a metadata store."""
_MAX_CONFIRMED = 100
"""How many objects of one topic a round checks at most."""
_MINUTE_US = 60_000_000
_log = structlog.get_logger(__name__)


def confirmed_end(cloud: TopicCloud, wanted: int) -> int:
    """Return the offset up to which the objects were read back and are complete; not far past `wanted`.

    Each object is checked once. Retention has removed what is below the first object.
    """
    spans = cloud.objects.spans
    end = max(cloud.confirmed_end, spans[0].first_offset if spans else 0)
    unknown = [span for span in spans if span.end_offset > end and span.first_offset < wanted]
    for span in unknown[:_MAX_CONFIRMED]:
        descriptor = cloud.registry.get(span.first_offset)
        follows = span.first_offset <= end
        if not follows or descriptor is None or not _is_complete(cloud, descriptor):
            _log.error(
                "cloud_object_mismatch",
                topic=str(cloud.topic),
                key=descriptor.key if descriptor is not None else None,
                first_offset=span.first_offset,
                end_offset=span.end_offset,
            )
            break
        end = span.end_offset
    cloud.confirmed_end = max(cloud.confirmed_end, end)
    return end


def _is_complete(cloud: TopicCloud, descriptor: ObjectDescriptor) -> bool:
    """Return whether an object has its size and its trailer, which is written last."""
    found = cloud.store.stat(descriptor.key)
    if found is None or found.size != descriptor.size:
        return False
    footer = cloud.store.read(descriptor.key, descriptor.size - FOOTER_BYTES, FOOTER_BYTES)
    return footer_data_bytes(footer) == descriptor.data_bytes


def published_before(lasts: Sequence[int], next_times: Sequence[int]) -> list[int]:
    """Return until when the messages of each segment or object were published, by its last time and all later ones.

    A clock that was ahead gives messages times ahead, until it is reset. What comes after the reset tells when they
    were published at the latest; else they would never grow old. A time of 0 says nothing.
    """
    found: list[int] = []
    bound = 0
    for last, next_time in zip(reversed(lasts), reversed(next_times), strict=True):
        if next_time:
            bound = min(bound, next_time) if bound else next_time
        found.append(min(last, bound) if bound else last)
    return found[::-1]


def expired_below(
    spans: Sequence[ObjectSpan], *, safe_end: int | None, minutes: int | None, megabytes: int | None, now_us: int
) -> int:
    """Return the offset below which objects may go; `safe_end` is how far the table has them, None if it need not."""
    nbytes = sum(span.size for span in spans)
    below = spans[0].first_offset if spans else 0
    times = [span.last_time_us for span in spans]
    ends = published_before(times[:-1], times[1:])
    for span, last_time_us in zip(spans[:-1], ends, strict=True):
        too_old = minutes is not None and last_time_us < now_us - minutes * _MINUTE_US
        too_much = megabytes is not None and nbytes > megabytes * MIB
        if (safe_end is not None and span.end_offset > safe_end) or not (too_old or too_much):
            break
        below = span.end_offset
        nbytes -= span.size
    return below


def remove_objects(cloud: TopicCloud, below: int, now_us: int) -> int:
    """Remove the objects that end at or before an offset and that nobody reads; return how many."""
    doomed = [span for span in cloud.objects.spans[:-1] if span.end_offset <= below][:MAX_REMOVED]
    removed = 0
    while removed < len(doomed):
        part = doomed[removed : removed + _TRANSACTION_OBJECTS]
        count = _remove(cloud, part, below, now_us)
        removed += count
        if count < len(part):
            break
    return removed


def _remove(cloud: TopicCloud, doomed: list[ObjectSpan], below: int, now_us: int) -> int:
    described = [cloud.registry.get(span.first_offset) for span in doomed]
    descriptors = [descriptor for descriptor in described if descriptor is not None]
    if len(descriptors) < len(doomed):
        cloud.objects.forget()  # they were removed meanwhile
        return 0
    with cloud.leases.lock:
        below = cloud.leases.floor(below)
        descriptors = [descriptor for descriptor in descriptors if descriptor.end_offset <= below]
        if not descriptors:
            return 0
        first = descriptors[-1].end_offset
        cloud.objects.remove_before(first)
    try:
        with cloud.changing:
            _remove_records(cloud, descriptors, now_us)
    except BaseException:
        cloud.objects.forget()  # in any case the records tell what is left
        raise
    cloud.objects.remove_before(first)  # also if the records were read again meanwhile
    for descriptor in descriptors:
        cloud.store.delete(descriptor.key)
    return len(descriptors)


def _remove_records(cloud: TopicCloud, descriptors: list[ObjectDescriptor], now_us: int) -> None:
    head = cloud.registry.owned or cloud.registry.refresh()
    cloud.registry.remove(
        descriptors,
        replace(
            head,
            first_offset=descriptors[-1].end_offset,
            object_count=head.object_count - len(descriptors),
            object_bytes=head.object_bytes - sum(descriptor.size for descriptor in descriptors),
            updated_us=now_us,
        ),
    )


def _has_sound_end(cloud: TopicCloud, found: ObjectInfo) -> bool:
    if found.size < FOOTER_BYTES:
        return False
    footer = cloud.store.read(found.key, found.size - FOOTER_BYTES, FOOTER_BYTES)
    return footer_data_bytes(footer) is not None


def remove_orphans(cloud: TopicCloud) -> int:
    """Delete objects that lie before the first one on the record: step 3 of removals that were cut short.

    Nothing at or past the head is touched, known or not: it may be on its way to the record. Nothing at all is touched
    where the record may be wrong: it was made from what was found just now, or the uploader does not agree with it. And
    what has no sound end stays: a recovery could not describe it, and its frames may be all that is left of messages.
    """
    status = cloud.status
    if cloud.has_rebuilt_records or (status is not None and status.last_error is not None):
        return 0
    head = cloud.registry.head()
    if head is None or not head.first_offset:
        return 0
    removed = 0
    for found in cloud.store.list(stream_prefix(cloud.topic, cloud.stream_id)):
        name = ObjectName.parse(found.key)
        if name is None:
            continue
        if name.first_offset >= head.first_offset or removed == MAX_REMOVED:  # names come in the order of offsets
            break
        if name.end_offset <= head.first_offset and _has_sound_end(cloud, found):
            cloud.store.delete(found.key)
            removed += 1
    return removed
