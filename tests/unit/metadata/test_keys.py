import pytest

from icestream.metadata import keys
from icestream.metadata.store import MAX_KEY_BYTES
from icestream.model.errors import InvalidNameError, InvalidRequestError
from icestream.model.names import MAX_PART_LENGTH, TopicName

EVENTS = TopicName("default", "events")


def test_the_layouts_are_as_documented() -> None:
    assert keys.namespaces() == "/namespaces/"
    assert keys.namespace("default") == "/namespaces/default"
    assert keys.topics() == "/topics/"
    assert keys.topics("default") == "/topics/default/"
    assert keys.topic(EVENTS) == "/topics/default/events"
    assert keys.brokers() == "/brokers/"
    assert keys.broker("broker-1") == "/brokers/broker-1"
    assert keys.owners() == "/owners/"
    assert keys.owner(EVENTS) == "/owners/default/events"
    assert keys.cloud_objects(EVENTS) == "/cloud/objects/default/events/"
    assert keys.cloud_object(EVENTS, 42) == "/cloud/objects/default/events/0000000000000000042"


def test_subscription_progress_lies_where_the_source_documents_say() -> None:
    root = "/persistent_storage/iceberg/subscriptions/"
    assert keys.subscriptions() == root
    assert keys.subscriptions("audit") == root + "audit/"
    assert keys.subscription_progress("audit", EVENTS) == root + "audit/default/events"


def test_a_topic_key_leads_back_to_its_topic() -> None:
    assert keys.topic_of(keys.topic(EVENTS)) == EVENTS


@pytest.mark.parametrize("key", ["/topics/", "/topics/default", "/topics/a/b/c", "/owners/a/b", "topics/a/b", ""])
def test_no_other_key_passes_for_a_topics(key: str) -> None:
    with pytest.raises(InvalidNameError):
        keys.topic_of(key)


def test_the_order_of_cloud_object_keys_is_that_of_offsets() -> None:
    offsets = [0, 9, 10, 99, 10**12, 2**63 - 1]
    made = [keys.cloud_object(EVENTS, offset) for offset in offsets]
    assert made == sorted(made)


@pytest.mark.parametrize("offset", [-1, 2**63])
def test_what_is_not_an_offset_has_no_key(offset: int) -> None:
    with pytest.raises(InvalidRequestError):
        keys.cloud_object(EVENTS, offset)


@pytest.mark.parametrize("bad", ["", "..", "a/b", "a b", "é", "a\0"])
def test_unchecked_names_cannot_reach_into_other_keys(bad: str) -> None:
    for name in (TopicName(bad, "events"), TopicName("default", bad)):
        for layout in (keys.topic, keys.owner, keys.cloud_objects):
            with pytest.raises(InvalidNameError):
                layout(name)
    for layout_of_text in (keys.namespace, keys.topics, keys.broker, keys.subscriptions):
        with pytest.raises(InvalidNameError):
            layout_of_text(bad)


def test_the_longest_names_make_keys_that_a_store_accepts() -> None:
    long = "x" * MAX_PART_LENGTH
    assert len(keys.subscription_progress(long, TopicName(long, long))) <= MAX_KEY_BYTES
