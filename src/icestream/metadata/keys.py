"""Every key that icestream writes, in one place.

    /topics/{namespace}/{topic}                   a topic: stream id, settings
    /cloud/heads/{namespace}/{topic}              how far a topic is in the cloud
    /cloud/objects/{namespace}/{topic}/{offset}   a cloud object by the first offset in it
    /persistent_storage/iceberg/subscriptions/{subscription}/{namespace}/{topic}

Functions in the plural return a prefix that ends in `/`, so it matches whole names only.
"""

from icestream.model.errors import InvalidRequestError
from icestream.model.names import TopicName, check_part

_TOPICS = "/topics/"
_CLOUD_HEADS = "/cloud/heads/"
_CLOUD_OBJECTS = "/cloud/objects/"
_SUBSCRIPTIONS = "/persistent_storage/iceberg/subscriptions/"
_OFFSET_DIGITS = 19  # the largest 64-bit offset; leading zeros make the order of keys that of offsets
_MAX_OFFSET = 2**63 - 1


def topics(namespace: str | None = None) -> str:
    return _TOPICS if namespace is None else f"{_TOPICS}{check_part(namespace, what='namespace')}/"


def topic(name: TopicName) -> str:
    return _TOPICS + _checked(name)


def cloud_head(name: TopicName) -> str:
    return _CLOUD_HEADS + _checked(name)


def cloud_objects(name: TopicName) -> str:
    return f"{_CLOUD_OBJECTS}{_checked(name)}/"


def cloud_object(name: TopicName, first_offset: int) -> str:
    if not 0 <= first_offset <= _MAX_OFFSET:
        raise InvalidRequestError(f"{first_offset} is not an offset", operation="metadata key", place=str(name))
    return f"{cloud_objects(name)}{first_offset:0{_OFFSET_DIGITS}d}"


def subscriptions(subscription: str | None = None) -> str:
    if subscription is None:
        return _SUBSCRIPTIONS
    return f"{_SUBSCRIPTIONS}{check_part(subscription, what='subscription')}/"


def subscription_progress(subscription: str, name: TopicName) -> str:
    return subscriptions(subscription) + _checked(name)


def _checked(name: TopicName) -> str:
    # A TopicName can be built without `parse`, and an unchecked part could reach into another topic's keys.
    return str(TopicName.parse(str(name)))
