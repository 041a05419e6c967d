"""Requests are parsed once, into structs; a refusal says the field, what was given and what is allowed."""

import json
from typing import Any, get_type_hints

import msgspec
import pytest

from icestream.model.enums import AckLevel, StorageKind
from icestream.model.errors import InvalidRequestError
from icestream.protocol import admin, subscribe
from icestream.protocol.parsing import MAX_REQUEST_BYTES, given, parse
from icestream.protocol.read import FramesTicket, QueryTicket, ReadTicket, parse_ticket
from icestream.storage import TopicRecord
from icestream.subscription import SubscriptionOptions

WRONG: list[tuple[Any, Any, str]] = [
    (admin.CreateTopic, {}, "topic is missing"),
    (admin.CreateTopic, {"topic": "a", "ack": "all"}, 'ack must be one of memory, disk, table, not "all"'),
    (admin.CreateTopic, {"topic": "a", "retention_mb": "9"}, 'retention_mb must be int | null, not "9"'),
    (admin.CreateTopic, {"topic": "a", "retention_mb": True}, "retention_mb must be int | null, not true"),
    (admin.CreateTopic, {"topic": "a", "retention_mb": 0}, "retention_mb must be int >= 1, not 0"),
    (admin.CreateTopic, {"topic": "a", "sort_by": ["x", 1]}, "sort_by.1 must be str, not 1"),
    (admin.NamedTopic, {"topic": "a", "tag": 1}, "tag is not known here; use topic"),
    (admin.NoFields, {"tag": 1}, "tag is not known here; send an empty object"),
    (admin.WaitCommitted, {"topic": "a", "offset": 1 << 63}, "offset must be int <= 9223372036854775807, not 9223"),
    (admin.NamedTopic, [], "the request must be object, not []"),
    (subscribe.Subscribe, {"topic": "a", "subscription": "s", "max_bytes": 0}, "max_bytes must be int >= 1, not 0"),
]


@pytest.mark.parametrize(("kind", "fields", "says"), WRONG)
def test_a_wrong_field_is_named_with_what_was_given_and_what_is_allowed(kind: Any, fields: Any, says: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse(json.dumps(fields).encode(), kind, operation="test")
    assert says in str(caught.value)


def test_a_key_that_is_there_twice_is_refused_like_any_other_wrong_field() -> None:
    with pytest.raises(InvalidRequestError, match=r"sort_by\.1 must be str"):
        parse(b'{"topic": "a", "sort_by": ["x", 1], "sort_by": []}', admin.CreateTopic, operation="test")


@pytest.mark.parametrize("text", [b"{", b"\xff", b'{"topic": "a"} {}', b'{"topic": 1, ', b'{"a":' * 100_000])
def test_bytes_that_are_not_json_are_refused(text: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="not JSON"):
        parse(text, admin.NamedTopic, operation="test")


def test_a_request_has_a_largest_size_and_may_be_empty() -> None:
    assert parse(b"", admin.ListTopics, operation="test").prefix == ""
    with pytest.raises(InvalidRequestError, match="at most"):
        parse(b" " * (MAX_REQUEST_BYTES + 1), admin.ListTopics, operation="test")


def test_a_ticket_is_parsed_into_what_it_asks_for() -> None:
    assert parse_ticket(b'{"topic": "a"}') == ReadTicket("a")
    assert parse_ticket(b'{"topic": "sql", "frames": "whole", "start": 0, "end": 5}') == FramesTicket(
        "sql", "whole", 0, 5
    )
    assert parse_ticket(b'{"sql": "SELECT 1"}') == QueryTicket("SELECT 1")
    assert parse_ticket(b'{"topic": "\\"sql\\""}') == ReadTicket('"sql"')
    for wrong in (
        b'{"sql": "x", "topic": "a"}',
        b'{"topic": "a", "frames": "all", "start": 0, "end": 1}',
        b"[]",
        b"sql",
    ):
        with pytest.raises(InvalidRequestError):
            parse_ticket(wrong)


NAMES = [attribute.name for attribute in admin.topic_attributes()]


class TestAttributesOfATopic:
    """Each is written down once, in `TopicAttributes`."""

    def test_every_place_that_has_them_is_made_from_the_class(self) -> None:
        for kind in (TopicRecord, admin.CreateTopic, admin.TopicSummary, admin.TopicDescription):
            names = [field.encode_name for field in msgspec.structs.fields(kind)]
            assert [name for name in names if name in NAMES] == NAMES, kind
        for changes in (admin.UpdateTopic, admin.UpdateTopicAction):
            found = {field.encode_name for field in msgspec.structs.fields(changes)} - {"topic"}
            assert found == admin.CHANGEABLE == {"ack", "retention_minutes", "retention_mb", "schema"}

    def test_the_clients_keywords_are_complete(self) -> None:
        assert {*get_type_hints(admin.TopicKeywords), "schema"} == set(NAMES)

    def test_each_has_a_description(self) -> None:
        assert all(attribute.description for attribute in admin.topic_attributes())

    def test_a_change_tells_what_was_given_from_what_was_left_out(self) -> None:
        change = parse(b'{"retention_mb": null, "ack": "disk"}', admin.UpdateTopic, operation="test")
        assert given(change) == {"retention_mb": None, "ack": AckLevel.DISK}
        assert given(parse(b"{}", admin.UpdateTopic, operation="test")) == {}

    def test_a_record_survives_its_bytes_and_one_of_an_earlier_version_is_read(self) -> None:
        record = TopicRecord(topic="a/b", stream_id="s", created_us=1, retention_mb=5, storage=StorageKind.LOG)
        assert TopicRecord.from_bytes(record.to_bytes()) == record
        fields = json.loads(record.to_bytes())
        assert fields["schema"] is None
        assert "encoded_schema" not in fields
        early = b'{"topic":"a/b","stream_id":"s","created_us":1,"epoch":1,"ack":"disk","schema":null}'
        assert TopicRecord.from_bytes(early) == TopicRecord(topic="a/b", stream_id="s", created_us=1)


def test_a_topic_in_a_list_may_have_no_offsets() -> None:
    listed = admin.TopicSummary(topic="a/b", stream_id="s", epoch=1, created_us=1)
    assert listed.message_count is None
    described = admin.TopicDescription(topic="a/b", stream_id="s", epoch=1, created_us=1, start_offset=2, durable_end=5)
    assert described.message_count == 3


def test_a_response_of_a_newer_broker_may_have_more_fields() -> None:
    fields = {"topic": "a/b", "stream_id": "s", "epoch": 1, "created_us": 1, "replicas": 3}
    assert msgspec.convert(fields, admin.TopicSummary).topic == "a/b"


def test_options_of_a_subscription_are_bounded() -> None:
    with pytest.raises(InvalidRequestError, match="ack_timeout_ms must be int >= 1, not 0"):
        SubscriptionOptions.from_json({"ack_timeout_ms": 0})
    assert SubscriptionOptions.from_json({"filter": None}) == SubscriptionOptions()
