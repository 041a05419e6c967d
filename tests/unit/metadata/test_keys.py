import re
from inspect import isfunction
from pathlib import Path

import pytest

import icestream
from icestream.metadata import keys
from icestream.metadata.store import MAX_KEY_BYTES
from icestream.model.errors import InvalidNameError, InvalidRequestError
from icestream.model.names import MAX_PART_LENGTH, TopicName

EVENTS = TopicName("default", "events")


def test_the_layouts_are_as_documented() -> None:
    assert keys.topics() == "/topics/"
    assert keys.topics("default") == "/topics/default/"
    assert keys.topic(EVENTS) == "/topics/default/events"
    assert keys.cloud_head(EVENTS) == "/cloud/heads/default/events"
    assert keys.cloud_objects(EVENTS) == "/cloud/objects/default/events/"
    assert keys.cloud_object(EVENTS, 42) == "/cloud/objects/default/events/0000000000000000042"


def test_every_layout_is_one_that_the_product_uses() -> None:
    layouts = [name for name, value in vars(keys).items() if isfunction(value) and value.__module__ == keys.__name__]
    sources = "".join(path.read_text() for path in Path(icestream.__file__).parent.rglob("*.py"))
    assert [name for name in layouts if not re.search(rf"\b(keys\.)?{name}\(", sources.replace("def ", ""))] == []


def test_subscription_progress_lies_where_the_source_documents_say() -> None:
    root = "/persistent_storage/iceberg/subscriptions/"
    assert keys.subscriptions() == root
    assert keys.subscriptions("audit") == root + "audit/"
    assert keys.subscription_progress("audit", EVENTS) == root + "audit/default/events"


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
        for layout in (keys.topic, keys.cloud_head, keys.cloud_objects):
            with pytest.raises(InvalidNameError):
                layout(name)
    for layout_of_text in (keys.topics, keys.subscriptions):
        with pytest.raises(InvalidNameError):
            layout_of_text(bad)


def test_the_longest_names_make_keys_that_a_store_accepts() -> None:
    long = "x" * MAX_PART_LENGTH
    assert len(keys.subscription_progress(long, TopicName(long, long))) <= MAX_KEY_BYTES
